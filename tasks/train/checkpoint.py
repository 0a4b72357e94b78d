"""Checkpoints that are complete or absent: a folder appears under its name only when it is whole.

Those for resume are written by torch.distributed.checkpoint, by every rank its part, so that another number
of ranks can read them. They hold all that the next step depends on: trained weights and optimizer state in
float32, the sampler's position, random states. The best weights are one safetensors file.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from tasks.stage import sync_path
from tasks.train.configuration import refuse_other

STATE = "state.json"
MODEL = "model.safetensors"
_PREFIX = "step-"
_PARTS = ("model", "optimizer", "random")
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")


@dataclass
class Position:
    """Where training stands, apart from tensors."""

    identity: str
    step: int = 0
    """Optimizer steps taken."""
    packs: int = 0
    """Packs consumed."""
    epoch: int = 0
    step_in_epoch: int = 0
    """Packs of this epoch that are consumed."""
    skipped_steps: int = 0
    """Steps without an update, because the loss or a gradient was not finite."""
    consecutive_skips: int = 0
    tokens: int = 0
    untrained_eal: float | None = None
    """Held-out acceptance before the first step; None if it is not known."""
    best_eal: float | None = None
    best_step: int = 0
    best_metrics: dict[str, float] = field(default_factory=dict)
    without_gain: int = 0
    """Held-out evaluations in a row without a higher `eal`."""
    train_seconds: float = 0.0
    wall_seconds: float = 0.0
    """Wall-clock time of all attempts, waiting and measuring included."""
    measured_step: int = -1
    """Step of the last held-out evaluation; -1 before the first."""
    order_end: int = 0
    """Samples of the train split that the first epoch of a growing log has passed."""
    order_digest: str = ""
    """Digest over their index lines: a log with other samples there cannot be continued."""
    cuts: list[int] = field(default_factory=list)
    """Places in that order where a batch ended early, as the window was full."""


def write_folder(final: Path, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> None:
    """Write safetensors files into a hidden folder, make them durable, and rename it to `final`.

    Args:
        tensors: File name -> name -> tensor.
        state: Written as `state.json`.
    """
    temporary = final.with_name(f".{final.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    for name, values in tensors.items():
        save_file({key: value.detach().contiguous().cpu() for key, value in values.items()}, temporary / name)
    _publish(temporary, final, state)


def _publish(temporary: Path, final: Path, state: Mapping[str, Any]) -> None:
    """Add `state.json` with the size of every file, make all of it durable, and give it its name."""
    files = {path.name: path.stat().st_size for path in temporary.iterdir()}
    (temporary / STATE).write_text(json.dumps({**state, "files": files}, indent=2), encoding="utf-8")
    sync_folder(temporary)
    if final.exists():
        old = final.with_name(f".{final.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        os.replace(final, old)
        os.replace(temporary, final)
        shutil.rmtree(old)
    else:
        os.replace(temporary, final)
    sync_path(final.parent)


def sync_folder(folder: Path) -> None:
    """Make the files of a folder and their names durable."""
    for path in folder.iterdir():
        sync_path(path)
    sync_path(folder)


class Checkpoints:
    """The checkpoints of one stage folder: `checkpoints/step-<n>` for resume and `checkpoints/best`.

    Args:
        folder: The stage's folder.
        keep: Checkpoints for resume that are kept.
        configuration: What decides the weights, by dotted name; a checkpoint remembers it.
        group: Of the ranks that write together; None for one process.
        leads: Whether this process names and drops folders; one of the ranks does.
    """

    def __init__(
        self,
        folder: Path,
        keep: int,
        configuration: Mapping[str, Any] = {},
        group: Any = None,
        leads: bool = True,
    ):
        self.folder = folder / "checkpoints"
        self._keep = keep
        self._configuration = dict(configuration)
        self._group = group
        self._leads = leads
        if leads:
            self._tidy()

    def _tidy(self) -> None:
        """Remove what a killed process left half done."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for stray in self.folder.glob(".*.tmp"):
            shutil.rmtree(stray, ignore_errors=True)
        for old in self.folder.glob(".*.old"):
            # A crash between the two renames of a replacement: the old folder is still the valid one.
            name = old.name.removeprefix(".").removesuffix(".old")
            if (self.folder / name).exists():
                shutil.rmtree(old, ignore_errors=True)
            else:
                os.replace(old, self.folder / name)

    def path(self, step: int) -> Path:
        return self.folder / f"{_PREFIX}{step}"

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, newest first."""
        found = [path.name.removeprefix(_PREFIX) for path in self.folder.glob(f"{_PREFIX}*")]
        return sorted((int(name) for name in found if name.isdigit()), reverse=True)

    def save(
        self,
        position: Position,
        model: Mapping[str, Tensor],
        optimizer: Mapping[str, Tensor],
        random: Mapping[str, Tensor],
    ) -> None:
        """Write a checkpoint and drop the oldest beyond the number to keep; all ranks call it together."""
        parts = dict(zip(_PARTS, (model, optimizer, random), strict=True))
        named = {f"{part}/{name}": value for part, values in parts.items() for name, value in values.items()}
        temporary = self.folder / f".{_PREFIX}{position.step}.tmp"
        writer = FileSystemWriter(temporary, single_file_per_rank=True, sync_files=True)
        dcp.save(named, storage_writer=writer, process_group=self._group, no_dist=self._group is None)
        if not self._leads:
            return
        state = {"position": asdict(position), "configuration": self._configuration}
        _publish(temporary, self.path(position.step), state)
        for step in self.steps()[self._keep :]:
            shutil.rmtree(self.path(step))

    def save_best(self, position: Position, model: Mapping[str, Tensor]) -> None:
        """Keep these whole weights as the best so far."""
        write_folder(self.folder / "best", {MODEL: model}, {"position": asdict(position)})

    def save_untrained(self, position: Position, model: Mapping[str, Tensor]) -> None:
        """Keep the whole weights before the first step, for a held-out set that is not complete yet."""
        write_folder(self.folder / "untrained", {MODEL: model}, {"position": asdict(position)})

    def untrained(self) -> dict[str, Tensor] | None:
        """The weights before the first step, if they were kept."""
        path = self.folder / "untrained"
        return None if _read_state(path) is None else load_file(path / MODEL)

    def newest(self, identity: str) -> Position | None:
        """Position of the newest undamaged checkpoint, or None if there is none.

        Raises:
            StageInputError: It is one of another configuration; with both values.
        """
        for step in self.steps():
            state = _read_state(self.path(step))
            if state is None:
                continue
            position, configuration = state
            if position.identity != identity:
                refuse_other(self.path(step), configuration, self._configuration)
            return position
        return None

    def sizes(self, step: int, part: str) -> dict[str, torch.Size]:
        """Whole size of every tensor of one part (`model`, `optimizer`, `random`) of a checkpoint."""
        return {name: entry.size for name, entry in self._entries(step, part).items()}

    def _entries(self, step: int, part: str) -> dict[str, TensorStorageMetadata]:
        found = FileSystemReader(self.path(step)).read_metadata().state_dict_metadata
        return {
            name.removeprefix(f"{part}/"): entry
            for name, entry in found.items()
            if name.startswith(f"{part}/") and isinstance(entry, TensorStorageMetadata)
        }

    def read(self, step: int, part: str, into: Mapping[str, Tensor]) -> None:
        """Fill tensors from a checkpoint, whole ones or a rank's shards; all ranks call it together."""
        named: dict[str, Any] = {f"{part}/{name}": value for name, value in into.items()}
        reader = FileSystemReader(self.path(step))
        dcp.load(named, storage_reader=reader, process_group=self._group, no_dist=self._group is None)

    def tensors(self, step: int) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        """Whole model, optimizer and random tensors of a checkpoint, in one process."""
        parts = []
        for part in _PARTS:
            entries = self._entries(step, part)
            found = {name: torch.empty(e.size, dtype=e.properties.dtype) for name, e in entries.items()}
            if found:
                self.read(step, part, found)
            parts.append(found)
        return parts[0], parts[1], parts[2]

    def best(self) -> tuple[Position, dict[str, Tensor]] | None:
        """Position and weights of the best evaluation so far."""
        path = self.folder / "best"
        state = _read_state(path)
        return None if state is None else (state[0], load_file(path / MODEL))

    def clear(self) -> None:
        """Forget everything: training begins anew."""
        shutil.rmtree(self.folder)
        self.folder.mkdir()


def _read_state(path: Path) -> tuple[Position, dict[str, Any]] | None:
    """Position and configuration of a folder; None if a file of it is missing or cut."""
    try:
        state = json.loads((path / STATE).read_text(encoding="utf-8"))
        if any((path / name).stat().st_size != size for name, size in state["files"].items()):
            return None
        return Position(**state["position"]), state.get("configuration", {})
    except (OSError, ValueError, TypeError, KeyError):
        return None
