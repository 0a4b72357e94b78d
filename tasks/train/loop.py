"""The training loop: plain torch, any device, one rank or many, exact resume, stops cleanly when asked to.

This is the leader's; the other ranks do what `tasks.train.team` tells them.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from profiles.training import Train
from tasks.errors import RetrainError
from tasks.train.checkpoint import Position
from tasks.train.data import Batches
from tasks.train.heldout import HeldOutSet
from tasks.train.journal import BAD_BATCHES, METRICS, SAMPLES, keep_rows, note_samples
from tasks.train.optimizer import rate_factor
from tasks.train.selection import Selection, is_better, write_row
from tasks.train.steps import Group, take_group
from tasks.train.stopping import Report, StopFlag, Stopped, choose_device
from tasks.train.team import Team

__all__ = ["Loop", "Report", "StopFlag", "Stopped", "choose_device", "is_better"]


class Loop:
    """Trains one draft.

    Args:
        team: The ranks that train it.
        batches: Packs of the train split.
        held_out: What is measured at the end of each epoch, and where the batches say so.
        folder: Stage folder: `metrics.jsonl`, `checkpoints/` and, of a growing log, `samples.jsonl` go there.
        identity: Identity of the resolved configuration, for resume.
        report: Called with steps done, steps in all, metrics and a note.
        stop: Asks the loop to save and stop.
    """

    def __init__(
        self,
        *,
        team: Team,
        settings: Train,
        batches: Batches,
        held_out: HeldOutSet,
        folder: Path,
        identity: str,
        report: Report,
        stop: StopFlag,
    ):
        self.team = team
        self.settings = settings
        self.batches = batches
        self.folder = folder
        self.report = report
        self.stop = stop
        self.position = Position(identity)
        self.selection = Selection(team, held_out, folder, self._report)
        self._saved: dict[str, Any] = {}
        self._saved_at = self._started = time.monotonic()
        self._wall_before = 0.0
        self._recent_started = time.monotonic()
        self._recent_tokens = 0
        self._recent_steps = 0
        self._waited_s = 0.0
        self._rate = 0.0

    def run(self) -> Position:
        """Train to the end, continuing from a complete checkpoint of the same configuration.

        Raises:
            Stopped: A signal came; a checkpoint was written.
            StageInputError: The checkpoints are of another configuration.
            JobError: A checkpoint could not be written.
            RetrainError: Too many steps in a row without a finite loss.
        """
        self._resume()
        if self.position.step == 0 and self.position.measured_step != 0:
            self._evaluate()
        try:
            while not self._is_done():
                stopped = self._one_step()
                if stopped or self.stop.raised:
                    raise Stopped
                self._release_saved()
                due = time.monotonic() - self._saved_at >= self.settings.checkpoint_every_s
                if due and not self.team.saver.is_busy:
                    self._save()
        except Stopped:
            self._save_now()
            raise
        self._save_now()
        return self.position

    @property
    def wall_seconds(self) -> float:
        """Wall-clock time of training, earlier attempts included."""
        return self._wall_before + time.monotonic() - self._started

    def early_end(self) -> str:
        """Why training ends before its last epoch and step; empty where it does not."""
        place, settings = self.position, self.settings
        if settings.early_stopping is not None and place.without_gain >= settings.early_stopping:
            return (
                f"held-out acceptance did not rise in {place.without_gain} measurements in a row "
                f"(train.early_stopping), so training ended at step {place.step}"
            )
        if settings.max_wall_s is not None and self.wall_seconds >= settings.max_wall_s:
            return (
                f"training ended at step {place.step} after {self.wall_seconds:.0f} s "
                f"(train.max_wall_s {settings.max_wall_s:g})"
            )
        return ""

    def _is_done(self) -> bool:
        """Close what is over: an epoch, or all of it. May wait for samples."""
        place = self.position
        if place.step == self.settings.max_steps or (place.epoch < self.settings.epochs and self.early_end()):
            if place.measured_step != place.step:
                self.batches.complete(place)
                self._close(
                    ends_epoch=place.epoch < self.settings.epochs and self.batches.is_over(place, None)
                )
            return True
        if place.epoch < self.settings.epochs:
            waited_from = time.monotonic()
            over = self.batches.is_over(place, self._save_now)
            self._recent_started += time.monotonic() - waited_from  # waiting is in no speed figure
            if over:
                self._close(ends_epoch=True)
                return self._is_done()
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

    def _one_step(self) -> bool:
        """Take one step; True if a rank was asked to stop."""
        group = take_group(self.batches, self.position, self.settings.packs_per_step)
        done, total = self._amount()
        factor = rate_factor(int(done), int(total), self.settings)
        update = self.team.update(group.packs, self.position.step, factor)
        self._rate = self.settings.lr * factor
        self._advance(group)
        if not update.finite:
            self._skip()
        elif update.learned:
            self.position.consecutive_skips = 0
            self._recent_tokens += group.tokens
        if self.position.step % self.settings.log_every_steps == 0:
            self._log_training()
        if group.measure and self.selection.is_complete(self.position):
            self._close(ends_epoch=False)
        elif group.release:
            self._save()
        return update.stop

    def _advance(self, group: Group) -> None:
        place = self.position = group.after
        place.step += 1
        place.tokens += group.tokens
        self._recent_steps += 1
        if group.samples is not None:
            note_samples(self.folder, place.step, place.epoch, group.samples)

    def _amount(self) -> tuple[float, float]:
        """Done and total: in the batches' unit, or in steps where `max_steps` ends training earlier."""
        place = self.position
        counted = copy.copy(place)
        counted.step = place.packs  # batches count what they hand out
        done, total = self.batches.amount(counted)
        steps, most = place.step, self.settings.max_steps
        if most is None or most * self.settings.packs_per_step > total:
            return done, total
        return (steps, most) if steps * total >= done * most else (done, total)

    def _skip(self) -> None:
        place = self.position
        place.skipped_steps += 1
        place.consecutive_skips += 1
        if place.consecutive_skips >= self.settings.max_bad_steps:
            self.team.keep_bad_packs(place.step)
            raise RetrainError(
                f"{place.consecutive_skips} steps in a row had no finite loss or gradient "
                f"(train.max_bad_steps {self.settings.max_bad_steps}; step {place.step})",
                where=str(self.folder / BAD_BATCHES),
                hint="lower train.lr, or look at the batch there for damaged captures; resume continues "
                "from the last checkpoint",
            )

    def _evaluate(self) -> None:
        """Held-out metrics; keep the weights if they are the best so far."""
        self.selection.evaluate(self.position)
        self._recent_started = time.monotonic()  # measuring is not training: it is in no speed figure

    def _log_training(self) -> None:
        now = time.monotonic()
        seconds = max(now - self._recent_started, 1e-9)
        metrics = self.team.take_sums().means()
        metrics |= {
            "lr": self._rate,
            "tokens_per_s": self._recent_tokens / seconds,
            "data_wait": (self.batches.waited_s - self._waited_s) / seconds,
            "skipped_steps": float(self.position.skipped_steps),
        }
        self.position.train_seconds += seconds
        write_row(self.folder, self.position, {"split": "train", **metrics})
        self._report({name: metrics[name] for name in ("loss", "eal", "tokens_per_s") if name in metrics}, "")
        self._recent_tokens, self._recent_steps = 0, 0
        self._recent_started, self._waited_s = now, self.batches.waited_s

    def _report(self, metrics: Mapping[str, float], note: str) -> None:
        done, total = self._amount()
        self.report(done, total, metrics, note)

    def _save(self) -> None:
        """Have a checkpoint of this position written beside training, unless there is one."""
        place = {**asdict(self.position), "wall_seconds": 0.0}
        self._saved_at = time.monotonic()
        if place == self._saved:
            return
        self._saved = place
        snapshot = copy.deepcopy(self.position)
        snapshot.wall_seconds = self.wall_seconds
        self.team.save(snapshot)

    def _save_now(self) -> None:
        """Write a checkpoint of this position and wait until it is complete."""
        self._save()
        self.team.saver.wait()
        self._release_saved()

    def _release_saved(self) -> None:
        """Let go of samples that complete checkpoints have consumed."""
        for place in self.team.saver.complete():
            self.batches.saved(place)

    def _resume(self) -> None:
        """Continue from the newest complete checkpoint of this configuration and log, else start anew."""
        checkpoints = self.team.checkpoints
        found = checkpoints.newest(self.position.identity)
        random.seed(self.settings.seed)
        if found is not None and not self.batches.fits(found):
            self.report(0, 1, {}, "the captures are other ones than the last attempt's: training begins anew")
            found = None
        if found is None:
            checkpoints.clear()
            for name in (METRICS, SAMPLES):
                (self.folder / name).unlink(missing_ok=True)
            return
        self.team.load(found.step)
        self.position = found
        self._wall_before = found.wall_seconds
        self._saved = {**asdict(found), "wall_seconds": 0.0}
        self._forget_later_rows(found)

    def _forget_later_rows(self, place: Position) -> None:
        """Forget rows of steps that will be taken again, so that no step appears twice."""

        def is_kept(row: dict[str, Any]) -> bool:
            # A checkpoint may be from just before a measurement whose row was written: it is made again.
            known = place.measured_step if row.get("split") == "held_out" else place.step
            return bool(row["step"] <= known)

        keep_rows(self.folder / METRICS, is_kept)
        keep_rows(self.folder / SAMPLES, is_kept)
