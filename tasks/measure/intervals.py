"""Bootstrap intervals of acceptance lengths: whole prompts are drawn again, never single rounds.

Rounds of one answer resemble each other, so the prompt is the unit that varies.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tasks.measure.acceptance import PromptCounts, macro, pool, tau

Floats = NDArray[np.float64]
_KEPT_CELLS = 1 << 20
"""Weights of more resamples times prompts are made again each time: a few MiB are kept, not hundreds."""


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
        taken = np.nanpercentile if np.isnan(values).any() else np.percentile  # the same, ten times as fast
        low, high = taken(values, [tail, 100 - tail])
        return float(low), float(high)


def domain_interval(name: str, counts: Sequence[PromptCounts], how: Bootstrap) -> Interval:
    """Acceptance length of one domain: pooled over its prompts, prompts resampled."""
    whole = pool(counts)
    value = tau(whole.rounds, whole.accepted)
    if value is None:
        return Interval(None)
    return Interval(value, *how.bounds(_resampled(name, counts, how)))


def macro_interval(domains: Mapping[str, Sequence[PromptCounts]], how: Bootstrap) -> Interval:
    """Unweighted mean over domains; prompts are resampled within each domain."""
    measured = _measured(domains)
    if not measured:
        return Interval(None)
    return Interval(_macro_value(measured), *how.bounds(_macro_samples(measured, how)))


def pooled_interval(domains: Mapping[str, Sequence[PromptCounts]], how: Bootstrap) -> Interval:
    """`1 + accepted / rounds` over everything; prompts are resampled within each domain."""
    measured = _measured(domains)
    if not measured:
        return Interval(None)
    whole = pool(part for counts in measured.values() for part in counts)
    rounds = np.zeros(how.samples)
    accepted = np.zeros(how.samples)
    for name, counts in measured.items():
        more_rounds, more_accepted = _sums(name, counts, how)
        rounds += more_rounds
        accepted += more_accepted
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
    value = _macro_value(left) - _macro_value(right)
    return Interval(value, *how.bounds(_macro_samples(left, how) - _macro_samples(right, how)))


def by_conversation(counts: Sequence[PromptCounts], groups: Sequence[Hashable]) -> list[PromptCounts]:
    """Counts pooled over the prompts of each conversation, in order of first appearance.

    States of one conversation resemble each other as rounds of one answer do. All of them are drawn
    together, and sums over a draw are the same, if they are one unit from the start.

    Args:
        groups: Conversation of each prompt.
    """
    members: dict[Hashable, list[PromptCounts]] = {}
    for part, group in zip(counts, groups, strict=True):
        members.setdefault(group, []).append(part)
    return [pool(parts) for parts in members.values()]


def _measured(
    domains: Mapping[str, Sequence[PromptCounts]],
) -> dict[str, Sequence[PromptCounts]]:
    return {name: counts for name, counts in domains.items() if pool(counts).rounds > 0}


def _macro_value(measured: Mapping[str, Sequence[PromptCounts]]) -> float:
    return macro(tau(p.rounds, p.accepted) for p in map(pool, measured.values())) or 0.0


def _macro_samples(domains: Mapping[str, Sequence[PromptCounts]], how: Bootstrap) -> Floats:
    rows = [_resampled(name, counts, how) for name, counts in domains.items()]
    return np.asarray(np.nanmean(np.stack(rows), axis=0))


def _resampled(name: str, counts: Sequence[PromptCounts], how: Bootstrap) -> Floats:
    return _ratio(*_sums(name, counts, how))


def _sums(name: str, counts: Sequence[PromptCounts], how: Bootstrap) -> tuple[Floats, Floats]:
    """Rounds and accepted tokens of every resample, `[samples]` each."""
    columns = np.array([(part.rounds, part.accepted) for part in counts], dtype=np.float64)
    small = how.samples * len(counts) <= _KEPT_CELLS
    weights = _kept_weights(name, len(counts), how) if small else _weights(name, len(counts), how)
    sums = weights @ columns.reshape(-1, 2)
    return sums[:, 0], sums[:, 1]


def _weights(name: str, prompts: int, how: Bootstrap) -> Floats:
    """How often each resample drew each prompt, `[samples, prompts]`.

    The domain's name is part of the seed, so adding one changes no other; both sides of a pair get the same.
    """
    generator = np.random.default_rng([how.seed, *name.encode()])
    draws = generator.integers(0, prompts, size=(how.samples, prompts))
    cells = (draws + np.arange(how.samples)[:, None] * prompts).ravel()
    return np.bincount(cells, minlength=how.samples * prompts).reshape(how.samples, prompts).astype(float)


_kept_weights = lru_cache(maxsize=16)(_weights)


def _ratio(rounds: Floats, accepted: Floats) -> Floats:
    """Tau of each resample; NaN where it drew only answers without a round."""
    out: Floats = np.full(rounds.shape, np.nan)
    np.divide(accepted, rounds, out=out, where=rounds > 0)
    return out + 1.0
