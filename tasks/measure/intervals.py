"""Bootstrap intervals of acceptance lengths: whole prompts are drawn again, never single rounds.

Rounds of one answer resemble each other, so the prompt is the unit that varies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.measure.acceptance import PromptCounts, macro, pool, tau

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Interval:
    """A value with its bounds; all None if nothing was measured."""

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Bootstrap:
    """How intervals are made: a percentile bootstrap with a fixed seed."""

    samples: int
    confidence: float
    """Two-sided, e.g. 0.90 gives the 5th and the 95th percentile."""
    seed: int

    def bounds(self, values: Floats) -> tuple[float, float]:
        """Lower and upper bound of resampled values."""
        tail = 100 * (1 - self.confidence) / 2
        low, high = np.nanpercentile(values, [tail, 100 - tail])
        return float(low), float(high)


def domain_interval(name: str, counts: Sequence[PromptCounts], how: Bootstrap) -> Interval:
    """Acceptance length of one domain: pooled over its prompts, prompts resampled."""
    whole = pool(counts)
    value = tau(whole.rounds, whole.accepted)
    if value is None:
        return Interval(None)
    return Interval(value, *how.bounds(_resampled(counts, _draws(name, len(counts), how))))


def macro_interval(domains: Mapping[str, Sequence[PromptCounts]], how: Bootstrap) -> Interval:
    """Unweighted mean over domains; prompts are resampled within each domain."""
    measured = _measured(domains)
    if not measured:
        return Interval(None)
    value = macro(tau(p.rounds, p.accepted) for p in map(pool, measured.values()))
    return Interval(value, *how.bounds(_macro_samples(measured, how)))


def pooled_interval(domains: Mapping[str, Sequence[PromptCounts]], how: Bootstrap) -> Interval:
    """`1 + accepted / rounds` over everything; prompts are resampled within each domain."""
    measured = _measured(domains)
    if not measured:
        return Interval(None)
    whole = pool(part for counts in measured.values() for part in counts)
    rounds = np.zeros(how.samples)
    accepted = np.zeros(how.samples)
    for name, counts in measured.items():
        draws = _draws(name, len(counts), how)
        rounds += _column(counts, "rounds")[draws].sum(axis=1)
        accepted += _column(counts, "accepted")[draws].sum(axis=1)
    return Interval(tau(whole.rounds, whole.accepted), *how.bounds(_ratio(rounds, accepted)))


def paired_macro_difference(
    new: Mapping[str, Sequence[PromptCounts]],
    old: Mapping[str, Sequence[PromptCounts]],
    how: Bootstrap,
) -> Interval:
    """Macro acceptance length of `new` minus that of `old` on the same prompts in the same order.

    Both sides of a resample use the same prompts, so what the prompts have in common cancels.

    Raises:
        ValueError: The two do not hold the same prompts.
    """
    if {k: len(v) for k, v in new.items()} != {k: len(v) for k, v in old.items()}:
        raise ValueError("a paired difference needs the same prompts on both sides")
    both = [name for name in new if name in _measured(new) and name in _measured(old)]
    if not both:
        return Interval(None)
    left, right = {name: new[name] for name in both}, {name: old[name] for name in both}
    value = (macro_interval(left, how).value or 0.0) - (macro_interval(right, how).value or 0.0)
    return Interval(value, *how.bounds(_macro_samples(left, how) - _macro_samples(right, how)))


def _measured(
    domains: Mapping[str, Sequence[PromptCounts]],
) -> dict[str, Sequence[PromptCounts]]:
    return {name: counts for name, counts in domains.items() if pool(counts).rounds > 0}


def _macro_samples(domains: Mapping[str, Sequence[PromptCounts]], how: Bootstrap) -> Floats:
    rows = [_resampled(counts, _draws(name, len(counts), how)) for name, counts in domains.items()]
    return np.asarray(np.nanmean(np.stack(rows), axis=0))


def _draws(name: str, prompts: int, how: Bootstrap) -> Indices:
    """Indices `[samples, prompts]`; the domain's name is part of the seed, so adding one changes no other."""
    generator = np.random.default_rng([how.seed, *name.encode()])
    return generator.integers(0, prompts, size=(how.samples, prompts))


def _resampled(counts: Sequence[PromptCounts], draws: Indices) -> Floats:
    return _ratio(
        _column(counts, "rounds")[draws].sum(axis=1),
        _column(counts, "accepted")[draws].sum(axis=1),
    )


def _column(counts: Sequence[PromptCounts], field: str) -> Floats:
    return np.array([getattr(part, field) for part in counts], dtype=np.float64)


def _ratio(rounds: Floats, accepted: Floats) -> Floats:
    """Tau of each resample; NaN where it drew only answers without a round."""
    out: Floats = np.full(rounds.shape, np.nan)
    np.divide(accepted, rounds, out=out, where=rounds > 0)
    return out + 1.0
