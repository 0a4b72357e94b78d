"""Gains of each domain and acceptance by prompt length, with intervals over prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tasks.evaluate.worth.models import ContextTau, DomainGain, Figure
from tasks.measure.acceptance import PromptCounts, tau
from tasks.measure.intervals import Bootstrap, Interval, domain_interval, paired_macro_difference

SHORTEST = 64
"""Prompts below this length, tokens, share one range; each further range is twice as long."""

Counts = Mapping[str, Sequence[PromptCounts]]


def domain_gains(new: Counts, old: Counts | None, how: Bootstrap) -> tuple[DomainGain, ...]:
    """Every domain's acceptance length and gains, against no draft and against the incumbent.

    Args:
        new: Counts of the draft, by domain and in the order of the prompts.
        old: Counts of the incumbent on the same prompts, or None.
    """
    return tuple(_domain_gain(name, counts, (old or {}).get(name), how) for name, counts in new.items())


def _domain_gain(
    name: str, counts: Sequence[PromptCounts], old: Sequence[PromptCounts] | None, how: Bootstrap
) -> DomainGain:
    value = _figure(domain_interval(name, counts, how))
    paired = Figure()
    if old is not None and len(old) == len(counts):
        paired = _figure(paired_macro_difference({name: counts}, {name: old}, how))
    return DomainGain(
        domain=name, prompts=len(counts), tau=value, over_none=_shifted(value), over_incumbent=paired
    )


def _figure(interval: Interval) -> Figure:
    return Figure(value=interval.value, low=interval.low, high=interval.high)


def _shifted(value: Figure) -> Figure:
    """Tokens per round beyond the one that a round yields without a draft."""
    if value.value is None or value.low is None or value.high is None:
        return Figure()
    return Figure(value=value.value - 1, low=value.low - 1, high=value.high - 1)


def by_context(
    lengths: Sequence[int], counts: Sequence[PromptCounts], how: Bootstrap
) -> tuple[ContextTau, ...]:
    """Acceptance length of each range of prompt lengths; ranges without a prompt are left out.

    Args:
        lengths: Tokens of each prompt.
        counts: Its walk, in the same order.
    """
    ranges: dict[int, list[PromptCounts]] = {}
    for length, part in zip(lengths, counts, strict=True):
        ranges.setdefault(_range_of(length), []).append(part)
    return tuple(_context(start, ranges[start], how) for start in sorted(ranges))


def _range_of(length: int) -> int:
    """Start of the range that a length belongs to: 0, 64, 128, 256, ..."""
    return 0 if length < SHORTEST else 1 << (length.bit_length() - 1)


def _context(start: int, counts: Sequence[PromptCounts], how: Bootstrap) -> ContextTau:
    single = [value for part in counts if (value := tau(part.rounds, part.accepted)) is not None]
    return ContextTau(
        at_least=start,
        below=SHORTEST if start == 0 else 2 * start,
        prompts=len(counts),
        tau=_figure(domain_interval(f"context {start}", counts, how)),
        median=float(np.median(single)) if single else None,
        top_tenth=float(np.percentile(single, 90)) if single else None,
        best=max(single, default=None),
    )
