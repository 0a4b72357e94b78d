"""The training loop: plain torch, any device, exact resume, stops cleanly when asked to."""

from __future__ import annotations

import math
import random
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from profiles.schema import Train
from tasks.errors import RetrainError, StageInputError
from tasks.train import adapter
from tasks.train.checkpoint import Checkpoints, Position
from tasks.train.data import Batch, Batches, choose_anchors
from tasks.train.heldout import HeldOut, HeldOutSet
from tasks.train.journal import METRICS, SAMPLES, append_row, keep_rows, note_samples
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
    return LossWeights(
        settings.loss_ce, settings.loss_tv, settings.loss_confidence, settings.decay_gamma, settings.loss_kl
    )


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
        held_out: What is measured at the end of each epoch, and where the batches say so.
        folder: Stage folder: `metrics.jsonl`, `checkpoints/` and, of a growing log, `samples.jsonl` go there.
        identity: Identity of the resolved configuration, for resume.
        report: Called with steps done, steps in all, metrics and a note.
        stop: Asks the loop to save and stop.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        settings: Train,
        batches: Batches,
        held_out: HeldOutSet,
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
        self._saved_at = time.monotonic()
        self._recent = MetricSums()
        self._recent_started = time.monotonic()
        self._recent_tokens = 0
        self._recent_steps = 0
        self._rate = 0.0

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
        if self.position.step == 0:
            self._evaluate()
        try:
            while not self._is_done():
                self._one_step()
                if self.stop.raised:
                    raise Stopped
                if time.monotonic() - self._saved_at >= self.settings.checkpoint_every_s:
                    self._save()
        except Stopped:
            self._save()
            raise
        return self.position

    def _is_done(self) -> bool:
        """Close what is over: an epoch, or all of it. May wait for samples."""
        place = self.position
        if place.step == self.settings.max_steps:
            if place.measured_step != place.step:
                self.batches.complete(place)
                self._close(ends_epoch=self.batches.is_over(place, None))
            return True
        if place.epoch < self.settings.epochs:
            waited_from = time.monotonic()
            over = self.batches.is_over(place, self._save)
            self._recent_started += time.monotonic() - waited_from  # waiting is in no speed figure
            if over:
                self._close(ends_epoch=True)
        return place.epoch == self.settings.epochs

    def _close(self, ends_epoch: bool) -> None:
        """The end of an epoch or of training: log, measure, save."""
        place = self.position
        if self._recent_steps:
            self._log_training()
        if ends_epoch:
            place.epoch += 1
            place.step_in_epoch = 0
        if place.measured_step != place.step:
            self._evaluate()
        self._save()

    def _one_step(self) -> None:
        place = self.position
        step = self.batches.take(place)
        batch = step.batch.to(self.device)
        done, total = self._amount()
        self._rate = set_rates(
            self.optimizers, rate_factor(int(done), int(total), self.settings), self.settings
        )
        sums = self._update(batch)
        self.batches.advance(place)
        place.step += 1
        place.tokens += batch.tokens
        self._recent_steps += 1
        if step.samples is not None:
            note_samples(self.folder, place.step, place.epoch, step.samples)
        if sums is not None:
            self._recent.add(sums)
            self._recent_tokens += batch.tokens
        if place.step % _LOG_EVERY_STEPS == 0:
            self._log_training()
        if step.measure and self.held_out.is_complete(place):
            self._close(ends_epoch=False)
        elif step.release:
            self._save()

    def _amount(self) -> tuple[float, float]:
        """Done and total: in the batches' unit, or in steps where `max_steps` ends training earlier."""
        done, total = self.batches.amount(self.position)
        steps, most = self.position.step, self.settings.max_steps
        if most is not None and most <= total and steps * total >= done * most:
            return steps, most
        return done, total

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
        if not self.held_out.is_complete(place):
            if place.step == 0:
                self.checkpoints.save_untrained(place, self.parameters)
            return
        held_out = self.held_out.measure()
        if held_out is None:
            place.measured_step = place.best_step = place.step
            self.checkpoints.save_best(place, self.parameters)
            return
        self._report({}, "held-out evaluation")
        if place.step > 0 and place.measured_step < 0:
            self._measure_untrained(held_out)
        metrics = self._measure(held_out, place)
        place.measured_step = place.step
        self._report({"eal": metrics.get("eal", math.nan)}, "")
        self._recent_started = time.monotonic()  # measuring is not training: it is in no speed figure

    def _measure(self, held_out: HeldOut, at: Position) -> dict[str, float]:
        """Measure the present weights, which are those of position `at`."""
        place = self.position
        with torch.inference_mode(), self.autocast():
            metrics = held_out.measure(self.model, self.weights)
        self._write(at, {"split": "held_out", **metrics})
        eal = metrics.get("eal", math.nan)
        if at.step == 0:
            place.untrained_eal = at.untrained_eal = eal if math.isfinite(eal) else None
        if is_better(metrics, place):
            place.best_eal, place.best_step, place.best_metrics = eal, at.step, metrics
            at.best_eal, at.best_step, at.best_metrics = eal, at.step, metrics
            self.checkpoints.save_best(at, self.parameters)
        return metrics

    def _measure_untrained(self, held_out: HeldOut) -> None:
        """Measure the weights from before the first step, now that the held-out samples are there."""
        untrained = self.checkpoints.untrained()
        if untrained is None:
            return
        trained = {name: value.detach().clone() for name, value in self.parameters.items()}
        self._put_weights(untrained)
        try:
            self._measure(held_out, replace(self.position, step=0, epoch=0, step_in_epoch=0, tokens=0))
        finally:
            self._put_weights(trained)

    def _put_weights(self, weights: Mapping[str, Tensor]) -> None:
        for name, value in self.parameters.items():
            value.data.copy_(weights[name])

    def _log_training(self) -> None:
        now = time.monotonic()
        seconds = max(now - self._recent_started, 1e-9)
        metrics = self._recent.means()
        metrics |= {
            "lr": self._rate,
            "tokens_per_s": self._recent_tokens / seconds,
            "skipped_steps": float(self.position.skipped_steps),
        }
        self.position.train_seconds += seconds
        self._write(self.position, {"split": "train", **metrics})
        self._report({name: metrics[name] for name in ("loss", "eal", "tokens_per_s") if name in metrics}, "")
        self._recent, self._recent_tokens, self._recent_steps = MetricSums(), 0, 0
        self._recent_started = now

    def _report(self, metrics: Mapping[str, float], note: str) -> None:
        done, total = self._amount()
        self.report(done, total, metrics, note)

    def _write(self, at: Position, metrics: Mapping[str, Any]) -> None:
        """One line of `metrics.jsonl`."""
        append_row(self.folder / METRICS, {"step": at.step, "epoch": at.epoch, **metrics})

    def _save(self) -> None:
        self.checkpoints.save(
            self.position, self.parameters, optimizer_tensors(self.optimizers), self._random_tensors()
        )
        self.batches.saved(self.position)
        self._saved_at = time.monotonic()

    def _random_tensors(self) -> dict[str, Tensor]:
        states = {"anchors": self.anchors.get_state(), "torch": torch.get_rng_state()}
        if self.device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(self.device)
        return states

    def _resume(self) -> None:
        """Continue from the newest complete checkpoint of this configuration and log, else start anew."""
        found = self.checkpoints.newest(self.position.identity)
        random.seed(self.settings.seed)
        if found is not None and not self.batches.fits(found):
            self.report(0, 1, {}, "the captures are other ones than the last attempt's: training begins anew")
            found = None
        if found is None:
            self.checkpoints.clear()
            for name in (METRICS, SAMPLES):
                (self.folder / name).unlink(missing_ok=True)
            return
        model, optimizer, states = self.checkpoints.tensors(found.step)
        self._put_weights(model)
        load_optimizer_tensors(self.optimizers, optimizer)
        self.anchors.set_state(states["anchors"])
        torch.set_rng_state(states["torch"])
        if "cuda" in states and self.device.type == "cuda":
            torch.cuda.set_rng_state(states["cuda"], self.device)
        self.position = found
        self._forget_later_rows(found)

    def _forget_later_rows(self, place: Position) -> None:
        """Forget rows of steps that will be taken again, so that no step appears twice."""

        def is_kept(row: dict[str, Any]) -> bool:
            unmeasured = row.get("split") == "held_out" and place.measured_step < 0 and place.step > 0
            return bool(row["step"] <= place.step) and not unmeasured

        keep_rows(self.folder / METRICS, is_kept)
        keep_rows(self.folder / SAMPLES, is_kept)
