"""Checkpoints that are complete or absent: a folder appears under its name only when it is whole.

Tensors are safetensors files, so that loading one never runs code. A checkpoint holds everything that the
next step depends on: trained weights in float32, optimizer state, sampler position, random states.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from tasks.stage import sync_path

STATE = "state.json"
MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
RANDOM = "random.safetensors"
_PREFIX = "step-"


@dataclass
class Position:
    """Where training stands, apart from tensors."""

    identity: str
    step: int = 0
    """Batches consumed."""
    epoch: int = 0
    step_in_epoch: int = 0
    skipped_steps: int = 0
    """Steps without an update, because the loss or a gradient was not finite."""
    consecutive_skips: int = 0
    tokens: int = 0
    untrained_eal: float | None = None
    """Held-out acceptance before the first step; None if it is not known."""
    best_eal: float | None = None
    best_step: int = 0
    best_metrics: dict[str, float] = field(default_factory=dict)
    train_seconds: float = 0.0
    measured_step: int = -1
    """Step of the last held-out evaluation; -1 before the first."""
    order_end: int = 0
    """Samples of the train split that the first epoch of a growing log has passed."""
    order_digest: str = ""
    """Digest over their index lines: a log with other samples there cannot be continued."""
    cuts: list[int] = field(default_factory=list)
    """Places in that order where a batch ended early, as the window was full."""


def write_folder(final: Path, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> None:
    """Write files into a hidden folder, make them durable, and rename it to `final`.

    Args:
        tensors: File name -> name -> tensor.
        state: Written as `state.json`.
    """
    temporary = final.with_name(f".{final.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    for name, values in tensors.items():
        save_file({key: value.detach().contiguous().cpu() for key, value in values.items()}, temporary / name)
    (temporary / STATE).write_text(json.dumps(state, indent=2), encoding="utf-8")
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
    """The checkpoints of one stage folder: `checkpoints/step-<n>` for resume and `checkpoints/best`."""

    def __init__(self, folder: Path, keep: int):
        self.folder = folder / "checkpoints"
        self._keep = keep
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
    ) -> Path:
        """Write a checkpoint and drop the oldest beyond the number to keep."""
        path = self.folder / f"{_PREFIX}{position.step}"
        write_folder(path, {MODEL: model, OPTIMIZER: optimizer, RANDOM: random}, asdict(position))
        for step in self.steps()[self._keep :]:
            shutil.rmtree(self.folder / f"{_PREFIX}{step}")
        return path

    def save_best(self, position: Position, model: Mapping[str, Tensor]) -> None:
        """Keep these weights as the best so far."""
        write_folder(self.folder / "best", {MODEL: model}, asdict(position))

    def save_untrained(self, position: Position, model: Mapping[str, Tensor]) -> None:
        """Keep the weights before the first step, for a held-out set that is not complete yet."""
        write_folder(self.folder / "untrained", {MODEL: model}, asdict(position))

    def untrained(self) -> dict[str, Tensor] | None:
        """The weights before the first step, if they were kept."""
        path = self.folder / "untrained"
        return None if _read_position(path) is None else load_file(path / MODEL)

    def newest(self, identity: str) -> Position | None:
        """Position of the newest readable checkpoint of this configuration, or None."""
        for step in self.steps():
            position = _read_position(self.folder / f"{_PREFIX}{step}")
            if position is not None and position.identity == identity:
                return position
        return None

    def tensors(self, step: int) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        """Model, optimizer and random tensors of a checkpoint."""
        path = self.folder / f"{_PREFIX}{step}"
        return load_file(path / MODEL), load_file(path / OPTIMIZER), load_file(path / RANDOM)

    def best(self) -> tuple[Position, dict[str, Tensor]] | None:
        """Position and weights of the best evaluation so far."""
        path = self.folder / "best"
        position = _read_position(path)
        return None if position is None else (position, load_file(path / MODEL))

    def clear(self) -> None:
        """Forget everything: the configuration changed."""
        shutil.rmtree(self.folder)
        self.folder.mkdir()


def _read_position(path: Path) -> Position | None:
    try:
        return Position(**json.loads((path / STATE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
