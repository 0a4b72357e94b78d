"""From arm records to the report's table of arms: outcome by domain, acceptance, verdict, drift."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from profiles.evaluation import AGAIN, PLAIN
from profiles.schema import Profile
from tasks.evaluate.arm_counts import by_request, disagreements, spread
from tasks.evaluate.arm_models import (
    ArmDetail,
    ArmsDetail,
    DistributionCheck,
    DomainOutcome,
    Outcome,
    Verdict,
)
from tasks.evaluate.arm_record import ArmRecord, DomainCounts
from tasks.evaluate.arm_series import MeasuredArms
from tasks.evaluate.arm_steps import tokens_per_step
from tasks.evaluate.assemble import live_measurement
from tasks.evaluate.conditions import differences
from tasks.evaluate.distribution import check_distribution
from tasks.evaluate.measured import Measurement, PromptComparison
from tasks.evaluate.verdict import Noise, compare_all, verdict, violations
from tasks.measure.intervals import Bootstrap

STEADY = 0.2
"""A change of the drift set's time that is said in the notes, relative."""
_SHOWN = 5


@dataclass(frozen=True)
class Basis:
    """What the arms of one evaluation are judged by."""

    profile: Profile
    domain_of: Mapping[str, str]
    """Domain of each prompt that was asked."""
    how: Bootstrap

    @property
    def max_failed(self) -> float:
        return self.profile.evaluate.live.max_failed


def arms_detail(basis: Basis, found: MeasuredArms, domains: Iterable[str]) -> ArmsDetail:
    """Every arm of the plan, measured or not.

    Args:
        domains: Domains that an evaluation should have; those without a prompt are named.
    """
    names = [arm.name for arm in found.plan] + ([AGAIN] if AGAIN in found.records else [])
    arms = tuple(_arm(basis, found, name) for name in names)
    present = set(basis.domain_of.values())
    return ArmsDetail(
        arms=arms,
        order=tuple(name for name in names if name in found.records),
        starts=sum(arm.starts for arm in arms),
        requests={arm.name: _of_domains(arm, "requests") for arm in arms if arm.domains},
        failures={arm.name: _of_domains(arm, "failed") for arm in arms if arm.domains},
        tokens_per_step={arm.name: arm.tokens_per_step.macro.value for arm in arms if arm.tokens_per_step},
        tau_per_drafted_round={arm.name: arm.acceptance.macro.value for arm in arms if arm.acceptance},
        empty_domains=tuple(name for name in domains if name not in present),
        notes=tuple(note for arm in arms for note in _notes(arm, found.records.get(arm.name), basis)),
    )


def _of_domains(arm: ArmDetail, count: Literal["requests", "failed"]) -> dict[str, int]:
    return {name: int(getattr(domain, count)) for name, domain in arm.domains.items()}


def noise_of(basis: Basis, found: MeasuredArms) -> Noise:
    """How often the target alone differed from itself; nothing if it was asked once."""
    again = found.records.get(AGAIN)
    if again is None:
        return Noise()
    compared = comparisons_of(basis, found, again)
    return Noise(len(compared), violations(compared))


def comparisons_of(basis: Basis, found: MeasuredArms, record: ArmRecord) -> list[PromptComparison]:
    """An arm's answers against those of the target alone."""
    live = basis.profile.evaluate.live
    return compare_all(found.plain.answers, record.answers, live.dtype, found.rulings, live.tie_steps)


def verdict_of(basis: Basis, found: MeasuredArms, record: ArmRecord) -> Verdict:
    """The lossless verdict of one arm; none between arms of different conditions."""
    noise = Noise() if record.name == AGAIN else noise_of(basis, found)
    judged = verdict(found.plain.answers, record.answers, comparisons_of(basis, found, record), noise)
    if record.conditions is None or found.plain.conditions is None:
        return judged
    apart = differences(record.conditions, found.plain.conditions)
    if not apart:
        return judged
    return judged.model_copy(update={"lossless": None, "reason": f"not comparable: {'; '.join(apart)}"})


def failures_judged(record: ArmRecord, max_failed: float) -> ArmRecord:
    """The record with every domain above the failure limit marked invalid; the others still count."""
    domains = {name: _judged(counts, max_failed) for name, counts in record.domains.items()}
    return record.model_copy(update={"domains": domains})


def _judged(counts: DomainCounts, max_failed: float) -> DomainCounts:
    if counts.invalid or counts.failed <= max_failed * counts.requests:
        return counts
    reason = f"{counts.failed} of {counts.requests} requests failed, the limit is {max_failed:.0%}"
    return counts.model_copy(update={"invalid": reason})


def share_failed(record: ArmRecord) -> float:
    return record.failed / len(record.answers) if record.answers else 0.0


def _arm(basis: Basis, found: MeasuredArms, name: str) -> ArmDetail:
    planned, record = found.planned(name), found.records.get(name)
    earlier = record.starts if record is not None and name in found.reused else 0
    starts = earlier + found.starts.get(name, 0)
    required = planned.required and name != AGAIN
    if record is None:
        failed = found.failures.get(name, "")
        return ArmDetail(
            name=name,
            status="failed" if failed else "not available",
            required=required,
            reason=failed or planned.unavailable,
            starts=starts,
        )
    record = failures_judged(record, basis.max_failed)
    invalid = ""
    if share_failed(record) > basis.max_failed:
        invalid = (
            f"{record.failed} of {len(record.answers)} requests failed, the limit is {basis.max_failed:.0%}"
        )
    requests = by_request(record, basis.domain_of) if record.speculates else None
    return ArmDetail(
        name=name,
        status="invalid" if invalid else "measured",
        required=required,
        reason=invalid,
        conditions=record.conditions,
        argv=record.argv,
        starts=starts,
        reused=name in found.reused,
        requests=len(record.answers),
        failed=record.failed,
        output_tokens=record.output_tokens,
        seconds=round(record.seconds, 3),
        repetitions=1 + len(record.further),
        unsteady=tuple(dict.fromkeys(one for again in record.further for one in again.unsteady)),
        domains=outcomes(record),
        acceptance=_acceptance(basis, record, not invalid) if record.speculates else None,
        tokens_per_step=None if invalid else tokens_per_step(record, basis.domain_of, basis.how),
        spread=None if invalid else spread(record),
        counted="by request" if requests is not None else "by domain",
        verdict=None if name == PLAIN else verdict_of(basis, found, record),
        drift=record.drift,
        distribution=None if name in (PLAIN, AGAIN) else _distribution(basis, found.plain, record),
    )


def outcomes(record: ArmRecord) -> dict[str, DomainOutcome]:
    """How each domain went."""
    return {name: _outcome(counts, record.speculates) for name, counts in record.domains.items()}


def _outcome(counts: DomainCounts, drafts: bool) -> DomainOutcome:
    outcome: Outcome = "measured"
    if counts.invalid:
        outcome = "invalid"
    elif not counts.requests:
        outcome = "empty"
    elif drafts and not counts.rounds:
        outcome = "no drafts observed"
    return DomainOutcome(
        requests=counts.requests,
        failed=counts.failed,
        outcome=outcome,
        reason=counts.invalid,
        restarted_before=counts.restarted_before,
        measured_again=counts.measured_again,
    )


def _acceptance(basis: Basis, record: ArmRecord, usable: bool) -> Measurement:
    requests = by_request(record, basis.domain_of)
    return live_measurement(record, asked(record, basis.domain_of), usable, requests, basis.how)


def asked(record: ArmRecord, domain_of: Mapping[str, str]) -> dict[str, int]:
    """Prompts that the arm was asked, by domain."""
    return dict(Counter(domain_of[name] for name in record.answers if name in domain_of))


def _distribution(basis: Basis, plain: ArmRecord, record: ArmRecord) -> DistributionCheck | None:
    how = basis.profile.evaluate.live.sampled
    if how is None or not plain.sampled or not record.sampled:
        return None
    return check_distribution(plain.sampled, record.sampled, how, basis.profile.evaluate.seed)


def _notes(arm: ArmDetail, record: ArmRecord | None, basis: Basis) -> list[str]:
    """What a reader of the arm's figures should know."""
    notes = [f"arm {arm.name}: {arm.status}: {arm.reason}"] if arm.reason else []
    if record is None:
        return notes
    if record.speculates and arm.counted == "by domain":
        notes.append(
            f"arm {arm.name}: its server reports no acceptance by request, so there are no intervals"
        )
    notes += [f"arm {arm.name}, {text}" for text in disagreements(record, basis.domain_of)]
    if arm.conditions is not None and arm.conditions.rejection_sample_method == "synthetic":
        notes.append(f"arm {arm.name}: accepts tokens without verifying them; its figures mean nothing")
    again = [name for name, one in arm.domains.items() if one.measured_again or one.restarted_before]
    if again:
        notes.append(f"arm {arm.name}: the server restarted at {_some(again)}")
    notes += drift_notes(arm)
    if arm.unsteady:
        notes.append(f"arm {arm.name}: later repetitions answered {_some(arm.unsteady)} differently")
    if arm.verdict is not None and arm.verdict.reason:
        notes.append(f"arm {arm.name}: {arm.verdict.reason}")
    return notes


def drift_notes(arm: ArmDetail) -> list[str]:
    """What the drift set says, if the arm was not steady."""
    drift = arm.drift
    if drift is None:
        return []
    notes = []
    if abs(drift.change) > STEADY:
        notes.append(
            f"arm {arm.name}: the same requests took {drift.seconds_before:.2f} s at its start and "
            f"{drift.seconds_after:.2f} s at its end ({drift.change:+.0%})"
        )
    if not drift.same_tokens:
        notes.append(f"arm {arm.name}: the same requests gave other tokens at its end")
    return notes


def difference_notes(name: str, judged: Verdict) -> list[str]:
    """The first differences, each with prompt, position, tokens and what the target said."""
    if not judged.differing:
        return []
    counted = (
        f"arm {name}: {judged.exact} of {judged.compared} answers are those of the target alone, "
        f"{judged.ties} differ by a tie, {judged.violations} by a violation"
    )
    worst = sorted(judged.differing, key=lambda one: bool(one.tie))
    return [counted, *(_difference(one) for one in worst[:_SHOWN])]


def _difference(one: PromptComparison) -> str:
    said = "the target was not asked"
    if one.plain_logprob is not None and one.arm_logprob is not None:
        said = f"log-probabilities {one.plain_logprob:.3f} and {one.arm_logprob:.3f}"
    ended = "the end"
    ours = ended if one.plain_token is None else one.plain_token
    theirs = ended if one.arm_token is None else one.arm_token
    return (
        f"prompt {one.prompt_number} ({one.prompt_id}), answer token {one.first_difference}: "
        f"{theirs} instead of {ours}, {'tie' if one.tie else 'violation'} ({said})"
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (" ..." if len(names) > _SHOWN else "")
