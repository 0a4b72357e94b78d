"""Builds the EvaluationReport and says in its notes what could not be measured, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from profiles.evaluation import AGAIN, DRAFT, PLAIN
from profiles.schema import DOMAINS, Profile
from tasks.evaluate.arm_counts import by_request
from tasks.evaluate.arm_models import Verdict
from tasks.evaluate.arm_plan import PlannedArm
from tasks.evaluate.arm_record import ArmRecord, LivePrompt
from tasks.evaluate.arm_report import (
    Basis,
    arms_detail,
    asked,
    comparisons_of,
    difference_notes,
    failures_judged,
    share_failed,
    verdict_of,
)
from tasks.evaluate.arm_series import MeasuredArms
from tasks.evaluate.assemble import (
    Agreement,
    ReplayRow,
    agreement,
    by_domain,
    live_measurement,
    replay_measurement,
)
from tasks.evaluate.conversations import drawn_together
from tasks.evaluate.models import ArmReport, Difference, EvaluationReport
from tasks.evaluate.text_checks import text_checks
from tasks.measure.acceptance import PromptCounts
from tasks.measure.intervals import Bootstrap, paired_macro_difference
from tasks.measure.quantiles import expanded


def build_report(
    profile: Profile,
    *,
    rows: Sequence[ReplayRow],
    plain: ArmRecord,
    draft: ArmRecord,
    block_size: int,
    incumbent: str | None,
    incumbent_rows: Sequence[ReplayRow] | None,
    notes: Sequence[str] = (),
    no_incumbent: str = "",
    arms: MeasuredArms | None = None,
    prompts: Sequence[LivePrompt] = (),
) -> EvaluationReport:
    """Put replay, arms and incumbent together.

    Args:
        rows: Replay of the draft, with walks of the replay's and of the live length.
        incumbent_rows: Replay of the incumbent on the same log, or None.
        notes: What earlier steps want said.
        no_incumbent: Why the incumbent of this run could not be replayed.
        arms: All arms; without it there are only these two, and no difference was asked about.
        prompts: What the arms were asked, where it was not replayed.
    """
    settings = profile.evaluate
    draft = failures_judged(draft, settings.live.max_failed)
    how = Bootstrap(settings.bootstrap_samples, settings.confidence, settings.seed)
    replayed = by_domain(rows, settings.replay_max_new_tokens)
    said = [*notes, *_arm_notes(plain, draft, settings.live.max_failed), *_empty_notes(replayed)]
    usable = all(share_failed(arm) <= settings.live.max_failed for arm in (plain, draft))
    agreed = agreement(draft, rows, settings.live.max_new_tokens, usable)
    said += _agreement_notes(agreed, settings.max_live_gap)
    found = arms or _two_arms(plain, draft)
    basis = Basis(profile, _domains(rows, prompts), how)
    judged = verdict_of(basis, found, draft)
    said += _verdict_notes(draft.name, judged)
    units = drawn_together(rows, settings.replay_max_new_tokens)
    return EvaluationReport(
        replay=replay_measurement(replayed, how, units),
        live=live_measurement(
            draft, asked(draft, basis.domain_of), usable, by_request(draft, basis.domain_of), how
        ),
        common_replay_pooled=agreed.replay_pooled,
        live_gap=agreed.gap,
        common_prompts=agreed.common,
        left_out=agreed.left_out,
        live_valid=usable and draft.speculates and not any(c.invalid for c in draft.domains.values()),
        lossless=judged.lossless or "different",
        comparisons=tuple(comparisons_of(basis, found, draft)),
        arms=tuple(arm_report(arm, profile) for arm in (plain, draft)),
        block_size=block_size,
        draft_sample_method=settings.live.draft_sample_method,
        rejection_sample_method=settings.live.rejection_sample_method,
        incumbent=incumbent,
        incumbent_unmeasured=no_incumbent,
        **_against(units, incumbent_rows, settings.replay_max_new_tokens, how),
        text=text_checks(plain, draft, found.records.get(AGAIN), settings.seed),
        notes=tuple(said),
        arms_detail=arms_detail(_asked_only(basis, plain), arms, DOMAINS) if arms is not None else None,
    )


def _domains(rows: Sequence[ReplayRow], prompts: Sequence[LivePrompt]) -> dict[str, str]:
    """Domain of each prompt that was replayed or asked."""
    return {row.prompt_id: row.domain for row in rows} | {one.prompt_id: one.domain for one in prompts}


def _two_arms(plain: ArmRecord, draft: ArmRecord) -> MeasuredArms:
    return MeasuredArms((PlannedArm(DRAFT), PlannedArm(PLAIN)), {DRAFT: draft, PLAIN: plain})


def _asked_only(basis: Basis, plain: ArmRecord) -> Basis:
    """The same, without the prompts that only replay walked."""
    return replace(
        basis, domain_of={name: basis.domain_of[name] for name in plain.answers if name in basis.domain_of}
    )


def _verdict_notes(name: str, judged: Verdict) -> list[str]:
    """What the lossless verdict rests on, where the answers are not simply equal."""
    notes = difference_notes(name, judged)
    if not judged.compared:
        notes.append("no prompt was answered by both arms, so losslessness was not shown")
    if judged.allowed:
        notes.append(
            f"the target alone violates its own answers in {judged.allowed:.1%} of the prompts (A/A)"
        )
    if judged.decayed:
        notes.append(f"with the draft, answers decay into repetition: {', '.join(judged.decayed)}")
    if judged.reason:
        notes.append(f"arm {name}: {judged.reason}")
    return notes


def arm_report(arm: ArmRecord, profile: Profile) -> ArmReport:
    """The arm's row in the report."""
    return ArmReport(
        name=arm.name,
        argv=arm.argv,
        engine=arm.engine,
        requests=len(arm.answers),
        failed=arm.failed,
        output_tokens=arm.output_tokens,
        seconds=round(arm.seconds, 3),
        speed_is_meaningful=not profile.evaluate.live.triton_interpreter,
    )


_TAIL_SAMPLES = 4
"""Times the resamples of other intervals: far tails need more of them."""
Counts = Mapping[str, Sequence[PromptCounts]]


def _difference(new: Counts, old: Counts, how: Bootstrap) -> Difference:
    gain = paired_macro_difference(new, old, how)
    return Difference(value=gain.value, low=gain.low, high=gain.high)


def domain_differences(new: Counts, old: Counts, how: Bootstrap) -> dict[str, Difference]:
    """Paired differences of each domain; their intervals hold together with the confidence of `how`.

    Each is as much wider as there are domains: of nine that did not change one would else seem to have
    fallen in every third comparison. And percentiles of a dozen units are too narrow: each is expanded as
    Student's t is wider than the normal distribution.
    """
    together = 1 - (1 - how.confidence) / max(len(new), 1)
    found = {}
    for name, counts in new.items():
        each = replace(how, confidence=expanded(together, len(counts)), samples=_TAIL_SAMPLES * how.samples)
        found[name] = _difference({name: counts}, {name: old[name]}, each)
    return found


def _against(
    new: Counts, incumbent_rows: Sequence[ReplayRow] | None, length: int, how: Bootstrap
) -> dict[str, Any]:
    """What the report says about the incumbent; nothing without one.

    Args:
        new: Counts of the draft, in the units that resamples draw.
    """
    if not incumbent_rows:
        return {}
    old = drawn_together(incumbent_rows, length)
    return {
        "incumbent_replay": replay_measurement(by_domain(incumbent_rows, length), how, old),
        "incumbent_gain": _difference(new, old, how),
        "incumbent_domains": domain_differences(new, old, how),
    }


def _arm_notes(plain: ArmRecord, draft: ArmRecord, max_failed: float) -> list[str]:
    notes = []
    for arm in (plain, draft):
        if arm.failed:
            first = next(answer for answer in arm.answers.values() if answer.error)
            above = " (live measurement invalid)" if share_failed(arm) > max_failed else ""
            notes.append(
                f"arm {arm.name}: {arm.failed} of {len(arm.answers)} requests failed{above}; "
                f"{first.prompt_id}: {first.error}"
            )
    if not draft.speculates or not any(counts.rounds for counts in draft.domains.values()):
        notes.append(f"arm {draft.name}: no drafts observed; the server does not speculate")
    notes += [f"live {name}: {counts.invalid}" for name, counts in draft.domains.items() if counts.invalid]
    return notes


def _empty_notes(domains: dict[str, list[PromptCounts]]) -> list[str]:
    empty = [name for name, counts in domains.items() if not any(part.rounds for part in counts)]
    return [f"replay {name}: nothing was drafted, so there is no acceptance length" for name in empty]


def _agreement_notes(agreed: Agreement, max_gap: float) -> list[str]:
    notes = []
    if agreed.left_out:
        notes.append(
            f"{len(agreed.left_out)} prompts (and their domains, where only counters say what they took) are "
            f"left out of live against replay: the live answer is not the captured one: "
            f"{', '.join(agreed.left_out)}"
        )
    if agreed.gap is None:
        notes.append("live and replay have no domain in common that can be compared")
    elif agreed.gap > max_gap:
        notes.append(
            f"live and replay differ by {agreed.gap:.1%} on {agreed.common} prompts (limit {max_gap:.1%})"
        )
    return notes
