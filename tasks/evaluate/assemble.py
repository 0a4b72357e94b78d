"""From counts to the report: measurements with intervals, the live gap, what may not be used and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.evaluate.arm_counts import ByDomain, by_prompt
from tasks.evaluate.arm_record import ArmRecord, DomainCounts
from tasks.evaluate.measured import Measurement, TauEstimate
from tasks.measure.acceptance import PromptCounts, macro, pool, position_rates, tau
from tasks.measure.intervals import (
    Bootstrap,
    Interval,
    domain_interval,
    macro_interval,
    pooled_interval,
)


@dataclass(frozen=True)
class ReplayRow:
    """One line of a replay: a prompt, the target's answer, and the walks over it by length."""

    prompt_id: str
    domain: str
    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    walks: Mapping[str, Mapping[str, Any]]
    rounds: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    """Of the longest walk: the answer token that each round started from, and what it accepted."""
    overlap: Mapping[str, Sequence[float]] | None = None
    """Sums over the answer's tokens, by position: `survival`, `overlap` and `known`."""

    @staticmethod
    def of(raw: Mapping[str, Any]) -> ReplayRow:
        return ReplayRow(
            raw["prompt_id"],
            raw["domain"],
            tuple(raw["prompt_ids"]),
            tuple(raw["answer_ids"]),
            raw["walks"],
            (tuple(raw["rounds"][0]), tuple(raw["rounds"][1])),
            raw["overlap"],
        )

    def counts(self, length: int) -> PromptCounts:
        row = self.walks[str(length)]
        return PromptCounts(row["rounds"], row["accepted"], tuple(row["per_position"]))

    def by_tokens(self, length: int) -> list[PromptCounts]:
        """The same for 1 ... K draft tokens."""
        return [
            PromptCounts(one["rounds"], one["accepted"], tuple(one["per_position"]))
            for one in self.walks[str(length)]["by_tokens"]
        ]

    def rounds_between(self, above: int, up_to: int | None) -> PromptCounts:
        """Rounds that started with more than `above` and at most `up_to` tokens of prompt and answer."""
        before = len(self.prompt_ids) + 1
        chosen = [
            accepted
            for anchor, accepted in zip(*self.rounds, strict=True)
            if above < before + anchor and (up_to is None or before + anchor <= up_to)
        ]
        return PromptCounts(len(chosen), sum(chosen))


def by_domain(rows: Sequence[ReplayRow], length: int) -> dict[str, list[PromptCounts]]:
    """Counts of walks of `length` answer tokens, by domain."""
    domains: dict[str, list[PromptCounts]] = {}
    for row in rows:
        domains.setdefault(row.domain, []).append(row.counts(length))
    return domains


def replay_measurement(
    domains: Mapping[str, Sequence[PromptCounts]],
    how: Bootstrap,
    drawn: Mapping[str, Sequence[PromptCounts]] | None = None,
) -> Measurement:
    """Per domain, macro and pooled, each with its interval.

    Args:
        drawn: The same counts in the units that resamples draw: conversations. Prompts, if left out.
    """
    everything = [part for counts in domains.values() for part in counts]
    units = drawn or domains
    return Measurement(
        domains={
            name: tau_estimate(domain_interval(name, units[name], how), counts)
            for name, counts in domains.items()
        },
        macro=tau_estimate(macro_interval(units, how), everything),
        pooled=tau_estimate(pooled_interval(units, how), everything),
    )


def tau_estimate(interval: Interval, counts: Sequence[PromptCounts]) -> TauEstimate:
    """A pooled acceptance length with its interval and what it was counted from."""
    whole = pool(counts)
    return TauEstimate(
        value=interval.value,
        low=interval.low,
        high=interval.high,
        prompts=len(counts),
        rounds=whole.rounds,
        accepted=whole.accepted,
        per_position=position_rates(whole.rounds, whole.per_position),
    )


def live_measurement(
    arm: ArmRecord,
    prompts: Mapping[str, int],
    usable: bool,
    requests: ByDomain | None = None,
    how: Bootstrap | None = None,
) -> Measurement:
    """What the counters say; values are None where the measurement is invalid.

    Counters are sums over prompts, so intervals need what single responses say.

    Args:
        prompts: Prompts asked, by domain.
        usable: False empties every value (too many requests failed).
        requests: Counts of each prompt by domain, where the server says them.
        how: How intervals are made of them.
    """
    valid = {name: counts for name, counts in arm.domains.items() if usable and not counts.invalid}
    domains = {name: _live_estimate(valid.get(name), prompts.get(name, 0)) for name in arm.domains}
    whole = pool(_pooled(counts) for counts in valid.values())
    pooled = _estimate(whole, sum(prompts.values()))
    mean = pooled.model_copy(update={"value": macro(one.value for one in domains.values())})
    if requests is None or how is None:
        return Measurement(domains=domains, macro=mean, pooled=pooled)
    known = {name: counts for name, counts in requests.items() if name in valid}
    return Measurement(
        domains={
            name: _bounded(one, domain_interval(name, known.get(name, ()), how))
            for name, one in domains.items()
        },
        macro=_bounded(mean, macro_interval(known, how)),
        pooled=_bounded(pooled, pooled_interval(known, how)),
    )


def counted_measurement(domains: Mapping[str, PromptCounts], prompts: Mapping[str, int]) -> Measurement:
    """Per domain, macro and pooled, of sums that no single answer is known of: there are no intervals.

    Args:
        prompts: Prompts that were asked, by domain.
    """
    of_domains = {name: _estimate(counts, prompts[name]) for name, counts in domains.items()}
    whole = _estimate(pool(domains.values()), sum(prompts.values()))
    mean = macro(one.value for one in of_domains.values())
    return Measurement(domains=of_domains, macro=whole.model_copy(update={"value": mean}), pooled=whole)


def _bounded(estimate: TauEstimate, interval: Interval) -> TauEstimate:
    """The estimate with an interval's bounds, if there is a value that they can belong to."""
    if estimate.value is None:
        return estimate
    return estimate.model_copy(update={"low": interval.low, "high": interval.high})


def _live_estimate(counts: DomainCounts | None, prompts: int) -> TauEstimate:
    if counts is None:
        return TauEstimate(value=None, prompts=prompts, rounds=0, accepted=0)
    return _estimate(_pooled(counts), prompts)


def _estimate(counts: PromptCounts, prompts: int) -> TauEstimate:
    return TauEstimate(
        value=tau(counts.rounds, counts.accepted),
        prompts=prompts,
        rounds=counts.rounds,
        accepted=counts.accepted,
        per_position=position_rates(counts.rounds, counts.per_position),
    )


def _pooled(counts: DomainCounts) -> PromptCounts:
    return PromptCounts(counts.rounds, counts.accepted, counts.per_position)


@dataclass(frozen=True)
class Agreement:
    """Live against replay."""

    replay_pooled: float | None
    gap: float | None
    common: int
    left_out: tuple[str, ...]
    """Prompts whose live answer is not the log's."""
    domains: tuple[str, ...]
    """Domains that were compared."""


def agreement(arm: ArmRecord, rows: Sequence[ReplayRow], length: int, usable: bool) -> Agreement:
    """Compare pooled acceptance lengths on the prompts that both walked token for token.

    Where the server says the rounds of each answer, a prompt whose answer differs from the log's leaves the
    comparison alone. Counters belong to whole domains: without such responses its domain leaves with it.
    """
    asked = [row for row in rows if row.prompt_id in arm.answers]
    left_out = tuple(
        row.prompt_id for row in asked if arm.answers[row.prompt_id].token_ids != row.answer_ids[:length]
    )
    said = by_prompt(arm)
    spoiled = {
        row.domain for row in asked if row.prompt_id in left_out and not _all_said(row.domain, asked, said)
    }
    kept = [
        name
        for name, counts in arm.domains.items()
        if usable and not counts.invalid and name not in spoiled and counts.rounds
    ]
    common = [row for row in asked if row.domain in kept and row.prompt_id not in left_out]
    replayed = pool(row.counts(length) for row in common)
    lived = pool(
        part
        for name in kept
        for part in _lived(name, [row.prompt_id for row in common if row.domain == name], arm, said)
    )
    ours, theirs = (
        tau(replayed.rounds, replayed.accepted),
        tau(lived.rounds, lived.accepted),
    )
    gap = None if ours is None or theirs is None else abs(theirs - ours) / ours
    return Agreement(ours, gap, len(common), left_out, tuple(kept))


def _all_said(domain: str, asked: Sequence[ReplayRow], said: Mapping[str, PromptCounts]) -> bool:
    return all(row.prompt_id in said for row in asked if row.domain == domain)


def _lived(
    domain: str, prompts: Sequence[str], arm: ArmRecord, said: Mapping[str, PromptCounts]
) -> list[PromptCounts]:
    """Live counts of these prompts: of each response, or of the whole domain, which then holds no other."""
    if prompts and all(name in said for name in prompts):
        return [said[name] for name in prompts]
    return [_pooled(arm.domains[domain])] if prompts else []
