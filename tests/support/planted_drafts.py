"""Faults planted in a copy of a trained draft, and the evaluation's own checks over captures."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tasks.evaluate.draft_check import TrainingRecord, check_config
from tasks.evaluate.replay import check_file
from tasks.evaluate.replays import Evaluation, draft_files, expected, replay_draft
from tasks.stream.log import HiddenStateLog, IndexEntry, LogWriter

Config = dict[str, Any]
Tensors = dict[str, Tensor]
MAPS = ("d2t", "t2d", "lm_head.weight")


def as_it_is(_: Any) -> None:
    """Change nothing."""


@dataclass(frozen=True)
class Fault:
    """What is changed in place, in `config.json` and in the stored tensors."""

    config: Callable[[Config], None] = as_it_is
    tensors: Callable[[Tensors], None] = as_it_is


def plant(draft: Path, folder: Path, fault: Fault) -> Path:
    """A copy of `draft` with the fault in it; weights that stay as they are are not copied."""
    folder.mkdir()
    path, weights = folder / "config.json", folder / "model.safetensors"
    shutil.copy(draft / path.name, path)
    config = json.loads(path.read_text(encoding="utf-8"))
    fault.config(config)
    path.write_text(json.dumps(config), encoding="utf-8")
    if fault.tensors is as_it_is:
        weights.symlink_to(draft / weights.name)
        return folder
    tensors = load_file(draft / weights.name)
    fault.tensors(tensors)
    save_file(
        {name: value.contiguous() for name, value in tensors.items()}, weights, metadata={"format": "pt"}
    )
    return folder


def judged(here: Evaluation, draft: Path, record: TrainingRecord | None) -> dict[str, Any]:
    """What the evaluate stage says of a draft before it serves it; its verdict, with notes.

    Raises:
        StageInputError: It refuses the draft.
    """
    check_config(draft, expected(here, record))
    rows = replay_draft(here, "replay", draft, draft_files(draft), record)
    verdict: dict[str, Any] = json.loads(check_file(rows).read_text(encoding="utf-8"))
    return verdict


def shifted_anchor(config: Config) -> None:
    """Every slot is one off, and all that states it says so."""
    config["sample_from_anchor"] = False
    config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] = config["block_size"] - 1


def no_tokens(config: Config) -> None:
    config.update(sample_from_anchor=False, block_size=1)
    config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] = 1


def other_rotary(theta: float) -> Callable[[Config], None]:
    def change(config: Config) -> None:
        config["transformer_layer_config"]["rope_parameters"] = {"rope_type": "default", "rope_theta": theta}

    return change


def stale_map(tensors: Tensors) -> None:
    """The map of another vocabulary, complete and consistent; the rows are those of the old one."""
    count = len(tensors["d2t"])
    ids = torch.arange(100, 100 + count)
    tensors["d2t"] = ids - torch.arange(count)
    tensors["t2d"] = torch.zeros_like(tensors["t2d"])
    tensors["t2d"][ids] = True


def swapped_layers(tensors: Tensors) -> None:
    """The first two layers of the draft in each other's place."""
    for name in [name for name in tensors if name.startswith("layers.0.")]:
        other = f"layers.1.{name.removeprefix('layers.0.')}"
        tensors[name], tensors[other] = tensors[other], tensors[name]


def read_in_order(order: Sequence[int]) -> Callable[[Tensors], None]:
    """The columns of the projection moved: it reads the captured layers in another order."""

    def change(tensors: Tensors) -> None:
        rows, columns = tensors["fc.weight"].shape
        parts = tensors["fc.weight"].view(rows, len(order), columns // len(order))
        tensors["fc.weight"] = parts[:, list(order)].reshape(rows, columns).clone()

    return change


def emptied(tensors: Tensors) -> None:
    """Zeros in all that is trained."""
    for name, value in tensors.items():
        if name not in MAPS:
            tensors[name] = torch.zeros_like(value)


def forgotten(tensors: Tensors) -> None:
    """Random numbers where training had written."""
    random = torch.Generator().manual_seed(0)
    for name, value in tensors.items():
        if "norm" not in name and name not in MAPS:
            tensors[name] = (torch.randn(value.shape, generator=random) / 30).to(value.dtype)


def picked(log: HiddenStateLog, per_domain: int) -> list[IndexEntry]:
    """The first evaluation answers of each domain."""
    taken, found = dict[str, int](), []
    for entry in sorted(log.entries("evaluate"), key=lambda one: one.i):
        taken[entry.domain] = taken.get(entry.domain, 0) + 1
        if taken[entry.domain] <= per_domain:
            found.append(entry)
    return found


def copy_log(log: HiddenStateLog, entries: Sequence[IndexEntry], folder: Path) -> Path:
    """A log of some answers."""
    writer = LogWriter(folder, sync=False)
    for entry in entries:
        states, ids = log.load(entry)
        writer.append(
            i=entry.i,
            prompt_id=entry.prompt_id,
            domain=entry.domain,
            split="evaluate",
            prompt_tokens=entry.prompt_tokens,
            answer_ids=tuple(entry.answer_ids),
            finish_reason=entry.finish_reason,
            hidden_states=states,
            token_ids=ids,
        )
    writer.close()
    return folder
