"""The training loop: plain torch, any device, exact resume, stops cleanly when asked to."""

from __future__ import annotations

import json
import math
import random
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType
from typing import IO, Any

import torch
from torch import Tensor, nn

from profiles.schema import Train
from tasks.errors import RetrainError, StageInputError
from tasks.train import adapter
from tasks.train.checkpoint import Checkpoints, Position
from tasks.train.data import Batch, TrainBatches, choose_anchors
from tasks.train.heldout import HeldOut
from tasks.train.loss import LossWeights, MetricSums, outcome_sums
from tasks.train.optimizer import (
    build_optimizers,
    load_optimizer_tensors,
    optimizer_tensors,
    rate_factor,
    set_rates,
)

MAX_CONSECUTIVE_SKIPS = 10
_LOG_EVERY_STEPS = 10
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

Report = Callable[[float, float, Mapping[str, float], str], None]


class Stopped(Exception):
    """A signal asked to stop; the state has been saved."""


class StopFlag:
    """Turns SIGTERM and SIGINT into a flag that the loop reads between steps."""

    def __init__(self) -> None:
        self.raised = False

    def install(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._raise)

    def _raise(self, _number: int, _frame: FrameType | None) -> None:
        self.raised = True


def choose_device(wanted: str) -> torch.device:
    """Device named by the profile; `auto` takes a GPU if there is one."""
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if wanted == "cuda" and not torch.cuda.is_available():
        raise StageInputError(
            "train.device is cuda, but torch sees no GPU",
            where="train.device",
            hint="use auto or cpu, or run on a machine with a GPU",
        )
    return torch.device(wanted)


def loss_weights(settings: Train) -> LossWeights:
    return LossWeights(settings.loss_ce, settings.loss_tv, settings.loss_confidence, settings.decay_gamma)


def is_better(metrics: Mapping[str, float], best: Position) -> bool:
    """Are these held-out metrics better than the best so far: by `eal`, and by loss where that is equal?

    At equal `eal` the later step is taken unless its loss is worse, so that training counts for something
    where no first token is right yet.
    """
    eal = metrics.get("eal", math.nan)
    if not math.isfinite(eal):
        return False
    if best.best_eal is None or eal > best.best_eal:
        return True
    return eal == best.best_eal and metrics.get("loss", math.nan) <= best.best_metrics.get("loss", math.inf)


class Loop:
    """Trains one draft.

    Args:
        model: The draft; trained in float32, run in `settings.autocast`.
        batches: Batches of the train split.
        held_out: Evaluation at the end of each epoch, or None if no sample is held out.
        folder: Stage folder: `metrics.jsonl` and `checkpoints/` go there.
        identity: Identity of the resolved configuration, for resume.
        report: Called with steps done, steps in all, metrics and a note.
        stop: Asks the loop to save and stop.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        settings: Train,
        batches: TrainBatches,
        held_out: HeldOut | None,
        folder: Path,
        identity: str,
        report: Report,
        stop: StopFlag,
        device: torch.device,
    ):
        self.model = model.to(device)
        self.settings = settings
        self.batches = batches
        self.held_out = held_out
        self.folder = folder
        self.report = report
        self.stop = stop
        self.device = device
        self.weights = loss_weights(settings)
        self.checkpoints = Checkpoints(folder, settings.keep_checkpoints)
        self.position = Position(identity)
        self.anchors = torch.Generator().manual_seed(settings.seed)
        self.parameters = adapter.trained_state(self.model)
        self.optimizers = build_optimizers(self.parameters, settings)
        total = batches.total_steps
        self.total_steps = total if settings.max_steps is None else min(total, settings.max_steps)
        self._metrics: IO[str] | None = None
        self._saved_at = time.monotonic()
        self._recent = MetricSums()
        self._recent_started = time.monotonic()
        self._recent_tokens = 0

    def autocast(self) -> AbstractContextManager[Any]:
        dtype = _DTYPES[self.settings.autocast]
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype != torch.float32)

    def run(self) -> Position:
        """Train to the end, continuing from a complete checkpoint of the same configuration.

        Raises:
            Stopped: A signal came; a checkpoint was written.
            RetrainError: Too many steps in a row without a finite loss.
        """
        self._resume()
        with open(self.folder / "metrics.jsonl", "a", encoding="utf-8") as self._metrics:
            if self.position.step == 0:
                self._evaluate()
            while self.position.step < self.total_steps:
                self._one_step()
                if self.stop.raised:
                    self._save()
                    raise Stopped
                if time.monotonic() - self._saved_at >= self.settings.checkpoint_every_s:
                    self._save()
        return self.position

    def _one_step(self) -> None:
        place = self.position
        batch = self.batches.batch(place.epoch, place.step_in_epoch).to(self.device)
        rate = set_rates(
            self.optimizers, rate_factor(place.step, self.total_steps, self.settings), self.settings
        )
        sums = self._update(batch)
        place.step += 1
        place.step_in_epoch += 1
        place.tokens += batch.tokens
        if sums is not None:
            self._recent.add(sums)
            self._recent_tokens += batch.tokens
        epoch_ends = place.step_in_epoch == self.batches.steps(place.epoch)
        last = place.step == self.total_steps
        if place.step % _LOG_EVERY_STEPS == 0 or epoch_ends or last:
            self._log_training(rate)
        if epoch_ends:
            place.epoch += 1
            place.step_in_epoch = 0
        if epoch_ends or last:
            self._evaluate()
            self._save()

    def _update(self, batch: Batch) -> dict[str, tuple[float, float]] | None:
        """One optimizer step. None: there was nothing to learn, or the step was skipped."""
        anchors = choose_anchors(batch, self.settings.anchors, self.anchors)
        if len(anchors) == 0:
            return None
        self.model.train()
        with self.autocast():
            outcome = adapter.run_blocks(self.model, batch, anchors, self.weights)
        outcome.loss.backward()
        norm = nn.utils.clip_grad_norm_(self.parameters.values(), self.settings.grad_clip)
        finite = math.isfinite(float(outcome.loss.detach())) and math.isfinite(float(norm))
        if finite:
            for optimizer in self.optimizers.values():
                optimizer.step()
            self.position.consecutive_skips = 0
        for optimizer in self.optimizers.values():
            optimizer.zero_grad(set_to_none=True)
        if not finite:
            self._skip()
            return None
        return outcome_sums(outcome)

    def _skip(self) -> None:
        place = self.position
        place.skipped_steps += 1
        place.consecutive_skips += 1
        if place.consecutive_skips >= MAX_CONSECUTIVE_SKIPS:
            raise RetrainError(
                f"{place.consecutive_skips} steps in a row had no finite loss (step {place.step})",
                where=str(self.folder / "metrics.jsonl"),
                hint="lower train.lr, or look for damaged captures; the weights before it are kept",
            )

    def _evaluate(self) -> None:
        """Held-out metrics; keep the weights if they are the best so far."""
        place = self.position
        if self.held_out is None:
            place.best_step = place.step
            self.checkpoints.save_best(place, self.parameters)
            return
        self.report(place.step, self.total_steps, {}, "held-out evaluation")
        with torch.inference_mode(), self.autocast():
            metrics = self.held_out.measure(self.model, self.weights)
        self._write({"split": "held_out", **metrics})
        eal = metrics.get("eal", math.nan)
        if place.step == 0:
            place.untrained_eal = eal if math.isfinite(eal) else None
        if is_better(metrics, place):
            place.best_eal, place.best_step, place.best_metrics = eal, place.step, metrics
            self.checkpoints.save_best(place, self.parameters)
        self.report(place.step, self.total_steps, {"eal": eal}, "")
        self._recent_started = time.monotonic()  # measuring is not training: it is in no speed figure

    def _log_training(self, rate: float) -> None:
        now = time.monotonic()
        seconds = max(now - self._recent_started, 1e-9)
        metrics = self._recent.means()
        metrics |= {
            "lr": rate,
            "tokens_per_s": self._recent_tokens / seconds,
            "skipped_steps": float(self.position.skipped_steps),
        }
        self.position.train_seconds += seconds
        self._write({"split": "train", **metrics})
        shown: dict[str, float] = {
            name: metrics[name] for name in ("loss", "eal", "tokens_per_s") if name in metrics
        }
        self.report(self.position.step, self.total_steps, shown, "")
        self._recent, self._recent_tokens, self._recent_started = MetricSums(), 0, now

    def _write(self, metrics: Mapping[str, Any]) -> None:
        """One line of `metrics.jsonl`; a value that is not finite becomes null."""
        clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in metrics.items()}
        assert self._metrics is not None
        place = {"step": self.position.step, "epoch": self.position.epoch}
        self._metrics.write(json.dumps({**place, **clean}) + "\n")
        self._metrics.flush()

    def _save(self) -> None:
        self.checkpoints.save(
            self.position, self.parameters, optimizer_tensors(self.optimizers), self._random_tensors()
        )
        self._saved_at = time.monotonic()

    def _random_tensors(self) -> dict[str, Tensor]:
        states = {"anchors": self.anchors.get_state(), "torch": torch.get_rng_state()}
        if self.device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(self.device)
        return states

    def _resume(self) -> None:
        """Continue from the newest complete checkpoint of this configuration, else start anew."""
        found = self.checkpoints.newest(self.position.identity)
        metrics = self.folder / "metrics.jsonl"
        random.seed(self.settings.seed)
        if found is None:
            self.checkpoints.clear()
            metrics.unlink(missing_ok=True)
            return
        model, optimizer, states = self.checkpoints.tensors(found.step)
        for name, value in self.parameters.items():
            value.data.copy_(model[name])
        load_optimizer_tensors(self.optimizers, optimizer)
        self.anchors.set_state(states["anchors"])
        torch.set_rng_state(states["torch"])
        if "cuda" in states and self.device.type == "cuda":
            torch.cuda.set_rng_state(states["cuda"], self.device)
        self.position = found
        _drop_later_lines(metrics, found.step)


def _drop_later_lines(metrics: Path, step: int) -> None:
    """Forget lines of steps that will be taken again, so that no step appears twice."""
    if not metrics.exists():
        return
    kept = []
    for line in metrics.read_text(encoding="utf-8").splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
        except (ValueError, KeyError, TypeError):
            continue
    metrics.write_text("".join(kept), encoding="utf-8")
