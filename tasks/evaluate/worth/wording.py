"""How figures of the decision are written in sentences."""

from __future__ import annotations

import math

from tasks.evaluate.worth.models import Figure, SpeedUp


def times(point: SpeedUp) -> str:
    """`1.9x [1.7, 2.1]`; two decimals where one would hide on which side of 1 a bound is."""
    near = min(point.speedup, point.low if point.low is not None else point.speedup)
    digits = 2 if near < 1.3 else 1
    text = f"{point.speedup:.{digits}f}x"
    if point.low is None or point.high is None:
        return text
    return f"{text} [{point.low:.{digits}f}, {point.high:.{digits}f}]"


def tokens(figure: Figure, signed: bool = False) -> str:
    """`1.47 [1.44, 1.50]`, or `+0.21 [0.15, 0.27]` for a difference."""
    if figure.value is None:
        return "unknown"
    text = f"{figure.value:+.2f}" if signed else f"{figure.value:.2f}"
    if figure.low is None or figure.high is None:
        return text
    return f"{text} [{figure.low:.2f}, {figure.high:.2f}]"


def at_most(value: float) -> int:
    """Whole requests in flight that a bound allows; the tiny error of interpolation does not cost one."""
    return math.floor(value + 1e-6)


def at_least(value: float) -> int:
    return math.ceil(value - 1e-6)


def two_digits(count: int) -> int:
    """A planned number of prompts, rounded up to two digits: more would pretend to be known."""
    step = 10 ** max(0, len(str(count)) - 2)
    return math.ceil(count / step) * step
