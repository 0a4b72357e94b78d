"""Speed-up along the concurrency with intervals, and where it ends.

Two things make a measured speed-up uncertain: repeated measurements differ, and other prompts would have
been drafted better or worse. The first is known where points were repeated (a second plain arm counts), the
second from resampling the prompts of the acceptance length, to which the speed-up is proportional.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tasks.evaluate.worth.models import Curve, SpeedUp, Standing
from tasks.evaluate.worth.points import Cell, Cells, along
from tasks.measure.quantiles import student, two_sided


@dataclass(frozen=True)
class Noise:
    """Standard deviation of the logarithm of one measured speed, pooled over repeated points."""

    deviation: float | None
    freedom: int


@dataclass(frozen=True)
class Spread:
    """What intervals are made of.

    Args:
        noise: Of repeated measurements.
        prompts: Relative standard error of the acceptance length from the choice of prompts, or None.
        confidence: Of the intervals, two-sided.
    """

    noise: Noise
    prompts: float | None
    confidence: float

    def half_width(self, arm: Cell, baseline: Cell) -> float | None:
        """Half of the interval of a log ratio; None if neither part is known."""
        if self.noise.deviation is None and self.prompts is None:
            return None
        width = 0.0
        if self.noise.deviation is not None:
            share = math.sqrt(1 / len(arm.points) + 1 / len(baseline.points))
            width = student(self.confidence, self.noise.freedom) * self.noise.deviation * share
        return math.hypot(width, two_sided(self.confidence) * (self.prompts or 0.0))


def noise_of(cells: Cells) -> Noise:
    """Pool the deviations of all cells with several points; unknown if there is none."""
    squares, freedom = 0.0, 0
    for cell in cells.values():
        mean = sum(cell.logs) / len(cell.logs)
        squares += sum((value - mean) ** 2 for value in cell.logs)
        freedom += len(cell.logs) - 1
    return Noise(math.sqrt(squares / freedom) if freedom else None, freedom)


def curve(cells: Cells, arm: str, baseline: str, spread: Spread) -> Curve:
    """Speed-up of `arm` over `baseline` at every concurrency that both have."""
    below = {cell.concurrency: cell for cell in along(cells, baseline)}
    points = tuple(
        speed_up(cell, below[cell.concurrency], spread)
        for cell in along(cells, arm)
        if cell.concurrency in below
    )
    bounded = all(point.low is not None for point in points)
    return Curve(
        arm=arm,
        baseline=baseline,
        points=points,
        crossover=falls_to_one(points, lambda point: point.speedup),
        sure_up_to=falls_to_one(points, lambda point: point.low or 0.0) if bounded else None,
        lost_above=falls_to_one(points, lambda point: point.high or 0.0) if bounded else None,
        noise=spread.noise.deviation,
    )


def speed_up(arm: Cell, baseline: Cell, spread: Spread) -> SpeedUp:
    """Ratio of both speeds with its interval, and which side of 1 it is on."""
    ratio = arm.tokens_per_s / baseline.tokens_per_s
    half = spread.half_width(arm, baseline)
    if half is None:
        return SpeedUp(concurrency=arm.concurrency, speedup=ratio, standing="open")
    low, high = ratio * math.exp(-half), ratio * math.exp(half)
    standing: Standing = "gain" if low > 1 else "loss" if high < 1 else "open"
    return SpeedUp(concurrency=arm.concurrency, speedup=ratio, low=low, high=high, standing=standing)


def falls_to_one(points: Sequence[SpeedUp], of: Callable[[SpeedUp], float]) -> float | None:
    """Concurrency at which a line through the points first falls to 1.

    Interpolated on logarithmic axes, where speed-up curves are close to straight between doublings. None
    if it never falls within the range, or is not above 1 at the lowest concurrency.
    """
    if not points or of(points[0]) <= 1:
        return None
    for left, right in itertools.pairwise(points):
        if of(right) <= 1:
            high, low = math.log(of(left)), math.log(max(of(right), 1e-9))
            share = high / (high - low)
            ends = math.log(left.concurrency), math.log(right.concurrency)
            return math.exp(ends[0] + share * (ends[1] - ends[0]))
    return None
