"""Line files of a training run: each step stands in them once, also after a kill."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from tasks.stage import write_atomic
from tasks.train.data import Batch

METRICS = "metrics.jsonl"
SAMPLES = "samples.jsonl"
BAD_BATCHES = "bad-batches"


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Add a line; a value that is not finite becomes null."""
    clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
    with open(path, "a", encoding="utf-8") as stream:
        stream.write(json.dumps(clean) + "\n")


def note_samples(folder: Path, step: int, epoch: int, numbers: Sequence[int]) -> None:
    """Write down which samples an optimizer step learned from: their numbers in the hidden-state log."""
    append_row(folder / SAMPLES, {"step": step, "epoch": epoch, "samples": list(numbers)})


def samples_of_steps(folder: Path) -> list[list[int]]:
    """What `note_samples` wrote, step after step."""
    lines = (folder / SAMPLES).read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["samples"] for line in lines]


def keep_rows(path: Path, keep: Callable[[dict[str, Any]], bool]) -> None:
    """Drop rows, and what is no complete row: so that no step that is taken again appears twice.

    A kill at any moment leaves the old rows or the new ones.
    """
    if not path.exists():
        return
    text = path.read_text(encoding="utf-8")
    kept = []
    for line in text.splitlines():
        try:
            if keep(json.loads(line)):
                kept.append(line + "\n")
        except (ValueError, KeyError, TypeError):
            continue
    if (wanted := "".join(kept)) != text:
        write_atomic(path, wanted)


def keep_batch(folder: Path, name: str, batch: Batch, anchors: Tensor, loss: float) -> None:
    """Write a batch that could not be learned from to `bad-batches/<name>.safetensors`, for inspection."""
    path = folder / BAD_BATCHES / f"{name}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    values = {field.name: getattr(batch, field.name) for field in fields(batch)}
    tensors = {key: value.contiguous().cpu() for key, value in values.items() if isinstance(value, Tensor)}
    tensors["anchors"] = anchors.contiguous().cpu()
    save_file(tensors, path, metadata={"loss": repr(loss)})
