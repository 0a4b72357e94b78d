"""Shares of places that are right, counted by conversation, and whether one is less than another by chance.

Places of one answer resemble each other: on SmolLM2's answers of 50 tokens the error is more than twice that
of as many single draws. So the conversation is the unit, as in `intervals`; here with plain formulas, because
training leaves only a value, its error and two counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.measure.quantiles import student

LEVEL = 0.001
"""Chance of a healthy draft to be called a bad one."""
FEWEST = 3
"""Degrees of freedom below which no test is made."""


@dataclass(frozen=True)
class Share:
    """Right places over all places, and how sure that is."""

    value: float
    places: int
    conversations: int
    error: float | None = None
    """Standard error over conversations; None where it is not known."""


@dataclass(frozen=True)
class Shortfall:
    """How much less one share is than another."""

    points: float
    """Difference, of 1."""
    error: float
    """Its standard error if both were the same draft's."""
    limit: float | None
    """Errors that chance exceeds once in `1 / LEVEL` times; None for too few conversations."""

    @property
    def is_certain(self) -> bool:
        return self.limit is not None and self.points > self.limit * self.error


def share_of(counts: Sequence[tuple[int, int]]) -> Share | None:
    """Share of `(right, places)` by conversation; None without a place.

    The error is that of a ratio of sums over clusters (Cochran, Sampling Techniques, section 6.3).
    """
    known = [(right, places) for right, places in counts if places]
    total = sum(places for _, places in known)
    if not total:
        return None
    value = sum(right for right, _ in known) / total
    if len(known) < 2:
        return Share(value, total, len(known))
    squares = sum((right - value * places) ** 2 for right, places in known)
    error = (squares * len(known) / (len(known) - 1)) ** 0.5 / total
    return Share(value, total, len(known), error)


def shortfall(seen: Share, promised: Share | float) -> Shortfall:
    """Test that `seen` is as high as `promised`: one-sided, by conversation.

    Both errors are taken at the middle of the two shares and with the common likeness within conversations: a
    sample of few conversations says little of its own spread, and the pooled share, which is mostly that of
    the larger sample, makes a low one beside six conversations look too sure.

    Args:
        promised: A number is taken as exact.
    """
    if not isinstance(promised, Share):
        spread = _variance(seen, max(promised, seen.value), likeness([seen]))
        limit = _limit(seen.conversations - 1)
        return Shortfall(promised - seen.value, spread**0.5, limit)
    common = (seen.value + promised.value) / 2
    alike = likeness([seen, promised])
    spread = _variance(seen, common, alike) + _variance(promised, common, alike)
    limit = _limit(seen.conversations + promised.conversations - 2)
    return Shortfall(promised.value - seen.value, spread**0.5, limit)


def likeness(shares: Sequence[Share]) -> float:
    """Correlation between places of one conversation, 0 to 1, over samples that know their error."""
    sum_, weight = 0.0, 0
    for one in shares:
        single = one.value * (1 - one.value) / one.places
        size = one.places / one.conversations
        if one.error is None or not single or size <= 1:
            continue
        sum_ += (one.conversations - 1) * (one.error**2 / single - 1) / (size - 1)
        weight += one.conversations - 1
    return min(max(sum_ / weight, 0.0), 1.0) if weight else 1.0


def _variance(share: Share, value: float, alike: float) -> float:
    """Variance of a share if `value` is the true one."""
    size = share.places / share.conversations
    return max(value * (1 - value), 1e-6) / share.places * (1 + (size - 1) * alike)


def _limit(freedom: int) -> float | None:
    """Errors that chance exceeds once in `1 / LEVEL` times, to one side."""
    return None if freedom < FEWEST else student(1 - 2 * LEVEL, freedom)
