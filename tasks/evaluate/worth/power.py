"""What a number of prompts can tell apart. The variance is that of the paired bootstrap over prompts."""

from __future__ import annotations

import math
from statistics import NormalDist

from tasks.evaluate.worth.models import Figure, Power
from tasks.measure.quantiles import two_sided

CHANCE = 0.8
"""An effect is called detectable if the measurement finds it in four of five cases."""
MOST_TIMES = 100
"""More than so many times the prompts are not a plan, so no number is given."""


def standard_error(figure: Figure, confidence: float) -> float | None:
    """Standard error from the width of a bootstrap interval; None without an interval."""
    if figure.low is None or figure.high is None:
        return None
    return (figure.high - figure.low) / (2 * two_sided(confidence))


def detectable(error: float, confidence: float) -> float:
    """Smallest difference that an interval of this confidence leaves 0 behind in four of five cases."""
    return (two_sided(confidence) + NormalDist().inv_cdf(CHANCE)) * error


def power(what: str, figure: Figure, prompts: int, confidence: float) -> Power | None:
    """Power of a difference whose interval came from resampling prompts; None without a value or interval.

    A standard error falls with the root of the number of prompts, so an effect `d` with detectable effect
    `m` at `n` prompts needs `n (m / d)^2` of them.

    Args:
        what: What is compared, e.g. "tokens per step against v0003".
        figure: Difference, 0 if there is none.
        prompts: Prompts behind it.
    """
    error = standard_error(figure, confidence)
    if figure.value is None or error is None or prompts == 0:
        return None
    smallest = detectable(error, confidence)
    settled = (figure.low or 0.0) > 0 or (figure.high or 0.0) < 0
    more = None
    if not settled and abs(figure.value) * math.sqrt(MOST_TIMES) > smallest:
        more = max(1, math.ceil(prompts * (smallest / abs(figure.value)) ** 2) - prompts)
    return Power(what=what, observed=figure.value, detectable=smallest, prompts=prompts, more_prompts=more)
