"""Seconds per token of each prompt, and how much faster one way of serving is than another.

Letters: P prompts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tasks.evaluate.policy.models import Gain
from tasks.evaluate.policy.slots import Floats
from tasks.measure.intervals import Bootstrap

_DIGITS = 9


@dataclass(frozen=True)
class Pace:
    """Seconds per token of each prompt under one policy, and how much each prompt counts."""

    seconds: Floats
    """`[P]`; NaN for a prompt that was not played."""
    weights: Floats
    """`[P]`, tokens of its answer."""

    def total(self) -> Floats:
        """`[P]`, seconds for the whole answer."""
        return self.seconds * self.weights


def gain(of: Pace, over: Pace, how: Bootstrap) -> Gain:
    """How much faster `of` is than `over`; prompts are resampled, the same for both sides."""
    both = np.isfinite(of.seconds) & np.isfinite(over.seconds)
    ours, theirs = of.total()[both], over.total()[both]
    drawn = _drawn(int(both.sum()), how.samples, how.seed)
    low, high = how.bounds((drawn @ theirs) / (drawn @ ours) - 1)
    value = float(theirs.sum() / ours.sum() - 1)
    return Gain(value=_rounded(value), low=_rounded(low), high=_rounded(high))


def _rounded(value: float) -> float:
    """Equal paces must give 0 and not a rounding error, which has a sign."""
    return round(value, _DIGITS) + 0.0


@lru_cache(maxsize=4)
def _drawn(prompts: int, samples: int, seed: int) -> Floats:
    """`[samples, prompts]`, how often each prompt is drawn."""
    random = np.random.default_rng(seed)
    return random.multinomial(prompts, np.full(prompts, 1 / prompts), size=samples).astype(np.float64)
