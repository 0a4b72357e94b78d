"""The resolved training configuration: every value written out, and its identity for resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from profiles.training import OF_THE_MACHINE, Train
from tasks.stage import canonical, sha256_text
from tasks.train.configuration import flat
from tasks.train.initial import InitialDraft

WAITING = "waiting for captures"
"""Note of the progress lines of a trainer that has nothing to do: no progress when nobody captures."""

_NO_WEIGHT = (*OF_THE_MACHINE, "max_wall_s", "max_bad_steps", "init_from")
"""Fields of `train` that change no weight before the last, rounding apart; and where the initial draft lies,
which counts by its content."""


class Overlap(BaseModel):
    """What is known of a log that still grows before its first sample is there."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    train_prompts: int
    """Prompts of the train split: the learning rate's schedule counts them, and so depends on no timing."""
    held_out_prompts: int
    window_bytes: int | None
    """Byte budget of the log; None where every sample is kept."""


class TrainSettings(BaseModel):
    """What the trainer's process gets; written as its `config.json`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    train: Train
    log_dir: str
    """Folder of the hidden-state log."""
    captures_digest: str
    """Identity of the captures; of a log that still grows, of what will be captured."""
    overlap: Overlap | None = None
    """Set where training reads the log in the order of capture, which may still grow."""
    target_dir: str
    """Folder of the target in Hugging Face format."""
    own_code: bool = False
    """Code in the target's folder may run: the profile pins it, and the folder was compared with the pin."""
    target_name: str
    """Name of the target that the exported draft names; never a path."""
    target_revision: str | None = None
    """Pinned revision of the target; the exported draft names it."""
    initial: InitialDraft | None = None
    """The draft that training starts from; None for a new one."""
    aux_layer_ids: tuple[int, ...]
    hidden_size: int
    capture_dtype: str = "float32"
    """Type in which the target was served, as torch writes it."""
    temperature: float | None = None
    """Sampling temperature of the captured answers; None where it is not known."""
    layer_links: tuple[float, ...] = ()
    """Similarity of neighbouring captured layers in samples known to be good; empty where it is not known."""
    folder: str
    """The stage's folder: checkpoints, metrics and export go here."""
    progress_file: str
    cache_bytes: int = 2 * 2**30
    """Captures kept in memory between epochs; beyond it they are read again."""

    @property
    def path(self) -> Path:
        return Path(self.folder)

    def at_rates(self) -> Train:
        """`train` with the peak learning rates of this start: lower from an earlier draft."""
        if self.initial is None:
            return self.train
        factor, muon = self.train.warm_rate, self.train.muon_lr
        rates = {"lr": self.train.lr * factor, "muon_lr": None if muon is None else muon * factor}
        return self.train.model_copy(update=rates)

    def deciding(self) -> dict[str, Any]:
        """All that decides the weights, by dotted name; JSON values."""
        unused = set(_NO_WEIGHT) if self.initial else {*_NO_WEIGHT, "warm_rate"}
        values: dict[str, Any] = {
            "train": self.train.model_dump(mode="json", exclude=unused),
            "captures": self.captures_digest,
            "target": self.target_name,
            "aux_layer_ids": list(self.aux_layer_ids),
        }
        if self.initial is not None:
            values["initial"] = self.initial.digest
        if self.overlap is not None:
            values["overlap"] = self.overlap.model_dump(mode="json")
        return flat(values)

    def identity(self) -> str:
        """Digest of all that decides the weights; a checkpoint of another identity is not continued."""
        return sha256_text(canonical(self.deciding()))

    def public(self) -> dict[str, Any]:
        """The configuration without paths, for the stage's result and the report."""
        return {
            **self.train.model_dump(mode="json"),
            "init_from": self.initial.name if self.initial is not None else None,
            "aux_layer_ids": list(self.aux_layer_ids),
            "target": self.target_name,
            "captures": self.captures_digest,
        }
