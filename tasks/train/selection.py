"""Held-out measurements, and the best weights among those that were measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tasks.train.checkpoint import Position
from tasks.train.heldout import HeldOut, HeldOutSet
from tasks.train.journal import METRICS, append_row
from tasks.train.team import Team

Say = Callable[[Mapping[str, float], str], None]


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


def write_row(folder: Path, at: Position, metrics: Mapping[str, Any]) -> None:
    """One line of `metrics.jsonl`."""
    append_row(folder / METRICS, {"step": at.step, "epoch": at.epoch, **metrics})


class Selection:
    """Measures the draft on the held-out samples and keeps its best weights.

    Args:
        folder: The stage's folder: `metrics.jsonl` and `checkpoints/best` are there.
        say: Told metrics and a note, for who watches.
    """

    def __init__(self, team: Team, held_out: HeldOutSet, folder: Path, say: Say):
        self._team = team
        self._held_out = held_out
        self._folder = folder
        self._say = say

    def is_complete(self, place: Position) -> bool:
        """Whether the held-out samples are all there, so that measurements compare."""
        return self._held_out.is_complete(place)

    def evaluate(self, place: Position) -> None:
        """Measure the present weights, and keep them if they are the best so far; notes it in `place`."""
        team = self._team
        if not self._held_out.is_complete(place):
            if place.step == 0:
                team.saver.save_untrained(replace(place), team.weights())
            return
        held_out = self._held_out.measure()
        if held_out is None:
            place.measured_step = place.best_step = place.step
            team.saver.save_best(replace(place), team.weights())
            return
        self._say({}, "held-out evaluation")
        if place.step > 0 and place.measured_step < 0:
            self._measure_untrained(held_out, place)
        team.show_newest()
        metrics = self._measure(held_out, place, place)
        place.measured_step = place.step
        self._say({"eal": metrics.get("eal", math.nan)}, "")

    def _measure(self, held_out: HeldOut, place: Position, at: Position) -> dict[str, float]:
        """Measure the weights that `team.model` holds, which are those of position `at`."""
        team = self._team
        with torch.inference_mode(), team.autocast():
            metrics = held_out.measure(team.model, team.learner.weights)
        write_row(self._folder, at, {"split": "held_out", **metrics})
        eal = metrics.get("eal", math.nan)
        if at.step == 0:
            place.untrained_eal = at.untrained_eal = eal if math.isfinite(eal) else None
        rose = math.isfinite(eal) and (place.best_eal is None or eal > place.best_eal)
        place.without_gain = 0 if rose else place.without_gain + 1
        if is_better(metrics, place):
            place.best_eal, place.best_step, place.best_metrics = eal, at.step, metrics
            at.best_eal, at.best_step, at.best_metrics = eal, at.step, metrics
            weights = {name: value.detach().to("cpu", copy=True) for name, value in team.shown().items()}
            team.saver.save_best(replace(at), weights)
        return metrics

    def _measure_untrained(self, held_out: HeldOut, place: Position) -> None:
        """Measure the weights from before the first step, now that the held-out samples are there."""
        team = self._team
        team.saver.wait()
        untrained = team.checkpoints.untrained()
        if untrained is None:
            return
        trained = team.weights()
        team.learner.show_weights(untrained)
        try:
            self._measure(
                held_out, place, replace(place, step=0, epoch=0, step_in_epoch=0, packs=0, tokens=0)
            )
        finally:
            team.learner.show_weights(trained)
