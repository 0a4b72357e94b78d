"""Upstream's trainer on our captures through its own command line, in one process, with the same values."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from train_world import TrainWorld

from profiles.schema import Train
from tasks.errors import JobError
from tasks.stream.offline import write_offline_dataset
from tasks.train import adapter
from tasks.train.data import Batch
from tasks.train.export import ExportedFor, export_draft
from tasks.train.vocabulary import answer_counts, choose_vocabulary

_RECORDER = Path(__file__).with_name("step_recorder.py")
_LIMIT_S = 1800.0


@dataclass(frozen=True)
class UpstreamRun:
    """Steps of one run of upstream's trainer.

    Args:
        steps: Per step `loss`, `tokens` and the seconds of its parts.
        own_s: Seconds of the recorder and the shims inside the steps, in all.
    """

    steps: list[dict[str, float]]
    own_s: float

    def tokens_per_s(self, warm: int) -> float:
        """Of the steps after the first `warm`; waiting for data is not in it."""
        rows = self.steps[warm:]
        seconds = sum(row["forward_s"] + row["backward_s"] + row["optimizer_s"] for row in rows)
        return sum(row["tokens"] for row in rows) / seconds

    def losses(self) -> list[float]:
        return [row["loss"] for row in self.steps]


class UpstreamTrainer:
    """Upstream's trainer on the captures of `world`; both sides start from the draft in `start`."""

    def __init__(self, world: TrainWorld):
        self._world = world
        self._rows = world.folder / "rows"
        self.start = world.folder / "start"
        write_offline_dataset(world.log, self._rows)
        _export_start(world, self.start)

    def run(self, name: str, train: Train, steps: int, record: Path | None = None) -> UpstreamRun:
        """Train `steps` steps in a process of its own.

        Args:
            record: Gets the batches and anchors.

        Raises:
            JobError: It failed; with the end of its output.
        """
        work = self._world.folder / "upstream" / name
        work.mkdir(parents=True)
        out = work / "steps.json"
        argv = [
            sys.executable,
            str(_RECORDER),
            str(out),
            str(record or "-"),
            *self._words(work, train, steps),
        ]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_LIMIT_S)
        if done.returncode != 0 or not out.is_file():
            raise JobError(
                f"upstream's trainer ended with {done.returncode}",
                where="speculators train",
                log_tail=(done.stdout + done.stderr).splitlines()[-20:],
            )
        found = json.loads(out.read_text(encoding="utf-8"))
        return UpstreamRun(found["steps"][:steps], found["own_s"])

    def _words(self, work: Path, train: Train, steps: int) -> list[str]:
        size = self._world.size
        share = (size.documents + 0.5) / (size.documents + size.held_out)
        return [
            "train",
            "--verifier-name-or-path", str(self._world.target),
            "--speculator-type", "dspark",
            "--from-pretrained", str(self.start),
            "--data-path", str(self._rows),
            "--hidden-states-backend", "file",
            "--hidden-states-path", str(self._world.log),
            "--on-missing", "skip",
            "--save-path", str(work / "checkpoints"),
            "--log-dir", str(work / "logs"),
            "--train-data-ratio", f"{share:.6f}",
            "--epochs", "1",
            "--max-steps", str(steps),
            *training_words(train),
        ]  # fmt: skip


def training_words(train: Train) -> list[str]:
    """Options of a step: nothing is left to a default that differs from ours."""
    return [
        "--max-anchors", str(train.anchors),
        "--total-seq-len", str(train.batch_tokens),
        "--hidden-states-dtype", train.autocast,
        "--loss-fn", json.dumps({"ce": train.loss_ce, "tv": train.loss_tv}),
        "--loss-implementation", "eager",
        "--confidence-head-alpha", str(train.loss_confidence),
        "--dflash-decay-gamma", str(train.decay_gamma),
        "--draft-attn-impl", "sdpa",
        "--optimizer", train.optimizer,
        "--lr", str(train.lr),
        "--muon-lr", str(train.muon_lr or train.lr),
        "--weight-decay", str(train.weight_decay),
        "--muon-weight-decay", str(train.weight_decay),
        "--scheduler-type", "none",
        "--seed", str(train.seed),
        "--num-workers", "0",
        "--log-freq", "1",
    ]  # fmt: skip


def fresh_draft(world: TrainWorld) -> Any:
    """The untrained draft of the world, in float32."""
    from tasks.stream.log import HiddenStateLog

    train = world.train
    counts = answer_counts(HiddenStateLog(world.log).entries("train"))
    vocabulary = choose_vocabulary(counts, train.draft.vocab_size, world.size.vocab)
    return adapter.build_draft(world.target, train.draft, world.aux_layer_ids, vocabulary, train.seed)


def _export_start(world: TrainWorld, folder: Path) -> None:
    model = fresh_draft(world)
    weights = {name: value.detach().clone() for name, value in adapter.trained_state(model).items()}
    # Upstream looks the target up under the name that the configuration gives.
    named = ExportedFor(str(world.target), None, world.target)
    export_draft(model, weights, folder, named, torch.float32)


def recorded_steps(folder: Path, count: int, dtype: torch.dtype) -> Sequence[tuple[Batch, Tensor]]:
    """Batches and anchors of upstream's first `count` steps, as ours: without padding.

    Args:
        dtype: Of the states.
    """
    return [_ours(torch.load(folder / f"{step}.pt"), dtype) for step in range(count)]


def _ours(kept: dict[str, Tensor], dtype: torch.dtype) -> tuple[Batch, Tensor]:
    documents = kept["document_ids"][0]
    real = int((documents >= 0).sum())  # padding stands behind the documents
    batch = Batch(
        token_ids=kept["input_ids"][0, :real],
        aux_states=kept["hidden_states"][0, :real].to(dtype),
        last_states=kept["verifier_last_hidden_states"][0, :real].to(dtype),
        loss_mask=kept["loss_mask"][0, :real].bool(),
        position_ids=kept["position_ids"][0, :real],
        document_ids=torch.unique_consecutive(documents[:real], return_inverse=True)[1],
    )
    return batch, kept["anchors"][kept["chosen"]]
