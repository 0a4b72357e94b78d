"""Acceptance length tau and its parts, from counted rounds and accepted draft tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PromptCounts:
    """What one answer (or a pool of answers) took to verify."""

    rounds: int
    """Verification rounds; the first answer token comes from the prefill and is none."""
    accepted: int
    """Draft tokens accepted in them, bonus tokens not counted."""
    per_position: tuple[int, ...] = ()
    """Rounds in which draft token i was accepted."""


def tau(rounds: int, accepted: int) -> float | None:
    """Tokens per verification round, bonus included: `1 + accepted / rounds`.

    None if nothing was drafted: that is "not measured", and neither 1.0 nor 0.
    """
    return 1.0 + accepted / rounds if rounds > 0 else None


def decoding_steps(tokens: int, answers: int, rounds: int, accepted: int) -> int:
    """Steps of the engine in which `answers` answers of `tokens` output tokens were decoded.

    The first token of an answer comes from the prefill, a round gives 1 + accepted, a step without a draft
    gives one: `steps = tokens - answers - accepted`. A last round may have accepted more than its answer
    took: steps are at least the rounds.
    """
    return max(rounds, tokens - answers - accepted)


def position_rates(rounds: int, per_position: Sequence[int]) -> tuple[float, ...]:
    """Share of rounds in which draft token i was accepted (unconditional); empty if nothing was drafted."""
    return tuple(count / rounds for count in per_position) if rounds > 0 else ()


def conditional_rates(rounds: int, per_position: Sequence[int]) -> tuple[float | None, ...]:
    """Share in which draft token i was accepted where all before it were; None where none ever were."""
    before = [rounds, *per_position]
    return tuple(
        count / base if base > 0 else None for base, count in zip(before, per_position, strict=False)
    )


def expected_length(overlaps: Sequence[float]) -> float:
    """Tokens per round that rejection sampling gives: `1 + sum of the products of the first k overlaps`.

    Args:
        overlaps: Acceptance of draft token k where all before it were accepted, `1 - TV` (DSpark, eq. 8).
    """
    length = survival = 1.0
    for overlap in overlaps:
        survival *= overlap
        length += survival
    return length


def pool(counts: Iterable[PromptCounts]) -> PromptCounts:
    """Sum of counts. Counters are pooled before any rate is taken."""
    rounds = accepted = 0
    positions: list[int] = []
    for part in counts:
        rounds += part.rounds
        accepted += part.accepted
        positions += [0] * (len(part.per_position) - len(positions))
        for index, count in enumerate(part.per_position):
            positions[index] += count
    return PromptCounts(rounds, accepted, tuple(positions))


def macro(values: Iterable[float | None]) -> float | None:
    """Unweighted mean over the domains in which something was measured; None if there is none."""
    measured = [value for value in values if value is not None]
    return sum(measured) / len(measured) if measured else None
