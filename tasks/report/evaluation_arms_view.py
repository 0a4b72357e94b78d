"""What the page shows of the arms on the real engine, as plain rows: no markup, no numbers left to format."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from profiles.evaluation import AGAIN, PLAIN
from tasks.evaluate.arm_models import ArmDetail, ArmsDetail, DistributionCheck, DomainOutcome, Drift, Verdict
from tasks.evaluate.arm_report import drift_notes
from tasks.evaluate.conditions import UNKNOWN, Conditions
from tasks.evaluate.measured import Measurement, PromptComparison
from tasks.report import wording
from tasks.report.record import RunRecord

Row = dict[str, str]
Rows = list[tuple[str, str]]

CHIP = {"measured": "pass", "invalid": "fail", "failed": "fail", "not available": "skip"}
VERDICT_CHIP = {"identical": "pass", "within_noise": "pass", "different": "fail"}
SAME_TAU = 0.005
"""Two figures closer than this are written alike."""
MAX_DIFFERING = 20
"""Differing answers of one arm on the page; violations come first, and the number left out is said."""
DIGEST_CHARS = 16
NONE = "none"

CONDITIONS = {
    "engine": "Engine",
    "runner": "Model runner",
    "interpreter": "Kernels in Triton's interpreter",
    "engine_arguments": "Further engine arguments",
    "target": "Digest of the target",
    "dtype": "Type",
    "method": "Method",
    "draft": "Digest of the draft",
    "num_speculative_tokens": "Draft tokens of a round",
    "draft_sample_method": "Draft picks tokens",
    "rejection_sample_method": "Rejection method",
    "temperature": "Temperature",
    "top_p": "Top-p",
    "seed": "Seed",
    "concurrency": "Requests in flight",
    "max_num_seqs": "Requests that the engine runs at once",
    "prefix_cache": "Prefix cache",
    "thinking": "Thinking mode",
    "max_new_tokens": "Longest answer, tokens",
    "prompts": "Digest of the prompts",
    "toolkit_channel": "CUDA toolkit",
    "hardware": "Hardware",
}
_NOT_TOLD = {"max_num_seqs", "prefix_cache"}
"""Conditions without a value only where a server that runs already does not tell them."""
_DIGESTS = {"target", "draft", "prompts"}


def arms(record: RunRecord) -> dict[str, Any] | None:
    """Everything of the section "Arms on the real engine"; None where no arm has a detail."""
    detail = record.evaluation.arms_detail if record.evaluation else None
    if detail is None or not detail.arms:
        return None
    found = in_order(detail)
    shared, columns, own = conditions(found)
    shown = {arm.name for arm in record.evaluation.arms} if record.evaluation else set()
    return {
        "starts": _starts(detail.starts),
        "acceptance": [acceptance_row(arm) for arm in found],
        "has_rounds": any(_skips(arm) for arm in found),
        "single_prompts": ", ".join(arm.name for arm in found if _has_single_prompts(arm.tokens_per_step)),
        "has_spread": any(arm.spread for arm in found),
        "has_drift": any(arm.drift for arm in found),
        "answers": [row for arm in found if (row := answer_row(arm, detail.named(AGAIN) is not None))],
        "has_sampled": any(arm.distribution for arm in found),
        "domain_arms": [arm.name for arm in found if arm.domains],
        "domains": domain_rows(found),
        "empty": ", ".join(detail.empty_domains),
        "differing": [row for arm in found for row in differing_rows(arm)],
        "more_differing": _left_out(found),
        "shared": shared,
        "own_columns": columns,
        "own": own,
        "commands": [(a.name, shlex.join(a.argv)) for a in found if a.argv and a.name not in shown],
        "notes": notes(detail),
    }


def _starts(count: int) -> str:
    if not count:
        return "no server was started for it"
    return "1 engine start in all" if count == 1 else f"{count} engine starts in all"


def in_order(detail: ArmsDetail) -> list[ArmDetail]:
    """Arms in the order of measuring, then those that could not be measured."""
    place = {name: at for at, name in enumerate(detail.order)}
    return sorted(detail.arms, key=lambda arm: place.get(arm.name, len(place)))


def acceptance_row(arm: ArmDetail) -> dict[str, Any]:
    """Outcome, cost and tokens per step of one arm; what its drafting rounds yield, where it skips steps."""
    macro = arm.tokens_per_step.macro if arm.tokens_per_step else None
    spread = arm.spread
    asked = arm.status in ("measured", "invalid")
    return {
        "name": arm.name,
        "status": arm.status,
        "chip": CHIP[arm.status],
        "reason": arm.reason + (" (from an earlier attempt)" if arm.reused else ""),
        "starts": str(arm.starts),
        "failed": f"{arm.failed} / {arm.requests}" if asked else wording.MISSING,
        "per_step": wording.tau(macro.value) if macro and macro.value is not None else _no_tau(arm),
        "interval": _interval(arm.tokens_per_step) if arm.tokens_per_step else "",
        "per_round": wording.tau(arm.acceptance.macro.value) if arm.acceptance else wording.MISSING,
        "drafts_in": _drafts_in(arm),
        "spread": f"{spread.p10:.2f} / {spread.median:.2f} / {spread.p90:.2f}" if spread else wording.MISSING,
        "drift": f"{100 * arm.drift.change:+.0f} %" if arm.drift else wording.MISSING,
        "seconds": _drift(arm.drift) if arm.drift else "",
        "asked": asked,
    }


def _no_tau(arm: ArmDetail) -> str:
    outcomes = {one.outcome for one in arm.domains.values()} - {"empty"}
    drafted_nothing = outcomes == {"no drafts observed"}
    return "no drafts observed" if drafted_nothing else wording.MISSING


def _interval(found: Measurement) -> str:
    """The interval of the mean; none where a domain has one prompt, which drawn again is always itself."""
    if _has_single_prompts(found):
        return wording.MISSING
    return wording.interval(found.macro.low, found.macro.high)


def _has_single_prompts(found: Measurement | None) -> bool:
    if found is None or found.macro.low is None:
        return False
    return any(one.prompts == 1 for one in found.domains.values())


def _skips(arm: ArmDetail) -> bool:
    """Whether the arm drafts in some steps only, so that its rounds say something else than its steps."""
    step = arm.tokens_per_step.macro.value if arm.tokens_per_step else None
    tau = arm.acceptance.macro.value if arm.acceptance else None
    return step is not None and tau is not None and abs(step - tau) >= SAME_TAU


def _drafts_in(arm: ArmDetail) -> str:
    """In which share of its steps an arm drafts; empty where it does in all, or nothing is known."""
    if not _skips(arm) or arm.tokens_per_step is None or arm.acceptance is None:
        return ""
    per_step, per_round = arm.tokens_per_step.pooled.value or 1.0, arm.acceptance.pooled.value or 1.0
    # What was accepted is (per round - 1) x rounds = (per step - 1) x steps, however many passes were pooled.
    share = (per_step - 1) / (per_round - 1) if per_round > 1 else 0.0
    return f"drafts in {wording.percent(share, 0)} of its steps" if 0 < share < 1 else ""


def _drift(drift: Drift) -> str:
    tokens = "" if drift.same_tokens else ", other tokens"
    return f"{drift.seconds_before:.2f} to {drift.seconds_after:.2f} s{tokens}"


def answer_row(arm: ArmDetail, has_again: bool = True) -> Row | None:
    """Verdict on the answers of one arm; None for the arm that the others are compared with.

    Args:
        has_again: The target alone was asked twice (A/A): how often it differs from itself is known.
    """
    found = arm.verdict
    if found is None or arm.name == PLAIN:
        return None
    return {
        "name": arm.name,
        "verdict": (found.lossless or "not comparable").replace("_", " "),
        "chip": VERDICT_CHIP[found.lossless] if found.lossless else "warn",
        "reason": _why(found, arm.name),
        "exact": f"{found.exact} / {found.compared}",
        "ties": str(found.ties),
        "violations": str(found.violations),
        "allowed": wording.percent(found.allowed) if has_again and arm.name != AGAIN else wording.MISSING,
        "sampled": sampled_text(arm.distribution) if arm.distribution else wording.MISSING,
    }


def _why(found: Verdict, name: str) -> str:
    reasons = ["the target against itself (A/A)"] if name == AGAIN else []
    reasons += [found.reason.removeprefix("not comparable: ")] if found.reason else []
    if not found.compared:
        reasons.append("no answer could be compared")
    if found.decayed:
        reasons.append(f"answers decay into repetition: {', '.join(found.decayed)}")
    return "; ".join(reasons)


def sampled_text(found: DistributionCheck) -> str:
    """The two-sample test in words, and what it could have found."""
    how = (
        f"p = {found.p_value:.3f}; {found.prompts} prompts x {found.samples} samples of {found.tokens} "
        f"tokens at temperature {found.temperature:g}"
    )
    if found.differs:
        return f"distribution differs: {how}, level {found.level:g}"
    power = (
        f"would find {wording.percent(found.detectable, 0)} wrong samples four times in five"
        if found.detectable is not None
        else "too few samples to find even an arm whose samples are all wrong"
    )
    return f"no difference found: {how}; {power}"


def domain_rows(found: Sequence[ArmDetail]) -> list[dict[str, Any]]:
    """For each domain one cell an arm: tokens per step, failed requests, and what went wrong."""
    asked = [arm for arm in found if arm.domains]
    names = dict.fromkeys(name for arm in asked for name in arm.domains)
    return [{"name": name, "cells": [_cell(arm, name) for arm in asked]} for name in names]


def _cell(arm: ArmDetail, domain: str) -> Row:
    outcome: DomainOutcome | None = arm.domains.get(domain)
    if outcome is None:
        return {"per_step": wording.MISSING, "count": "", "mark": ""}
    estimate = arm.tokens_per_step.domains.get(domain) if arm.tokens_per_step else None
    mark = "" if outcome.outcome == "measured" else outcome.outcome
    return {
        "per_step": wording.tau(estimate.value) if estimate and estimate.value is not None else "",
        "count": f"{outcome.failed} / {outcome.requests} failed",
        "mark": f"{mark}: {outcome.reason}" if outcome.reason else mark,
    }


def differing_rows(arm: ArmDetail) -> list[Row]:
    """The first difference of each answer that differs, violations first."""
    found = arm.verdict.differing if arm.verdict else ()
    worst = sorted(found, key=lambda one: bool(one.tie))
    return [{"arm": arm.name, **_difference(one)} for one in worst[:MAX_DIFFERING]]


def _difference(one: PromptComparison) -> Row:
    said = "not asked"
    if one.plain_logprob is not None and one.arm_logprob is not None:
        said = f"{one.plain_logprob:.3f} / {one.arm_logprob:.3f}"
    number = wording.MISSING if one.prompt_number is None else str(one.prompt_number)
    return {
        "number": number,
        "prompt": one.prompt_id,
        "position": str(one.first_difference),
        "plain": _token(one.plain_token),
        "other": _token(one.arm_token),
        "kind": "tie" if one.tie else "violation",
        "logprobs": said,
    }


def _token(token: int | None) -> str:
    return "the end" if token is None else str(token)


def _left_out(found: Sequence[ArmDetail]) -> str:
    """How many differing answers of which arm are not on the page."""
    more = [(arm.name, len(arm.verdict.differing) - MAX_DIFFERING) for arm in found if arm.verdict]
    return ", ".join(f"{count} more of {name}" for name, count in more if count > 0)


def conditions(found: Sequence[ArmDetail]) -> tuple[Rows, list[str], list[dict[str, Any]]]:
    """What all arms share, once; then the columns that differ, and a row of them for each arm."""
    measured = [(arm, arm.conditions) for arm in found if arm.conditions is not None]
    if not measured:
        return [], [], []
    values = {name: [shown(one, name) for _, one in measured] for name in CONDITIONS}
    same = {name for name, column in values.items() if len(set(column)) == 1}
    shared = [(label, values[name][0]) for name, label in CONDITIONS.items() if name in same]
    apart = [name for name in CONDITIONS if name not in same]
    rows = [
        {
            "name": arm.name,
            "cells": [
                *(shown(one, name) for name in apart),
                wording.count(arm.output_tokens),
                str(arm.repetitions),
                arm.counted if arm.acceptance else wording.MISSING,
            ],
        }
        for arm, one in measured
    ]
    return shared, [*(CONDITIONS[name] for name in apart), "Output tokens", "Repetitions", "Counted"], rows


def shown(one: Conditions, name: str) -> str:
    """One condition as a reader writes it."""
    value = getattr(one, name)
    if value is None and name in _NOT_TOLD:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return " ".join(value) or NONE
    if name in _DIGESTS:
        return str(value)[:DIGEST_CHARS] or NONE
    return f"{value:g}" if isinstance(value, float) else NONE if value in (None, "") else str(value)


def notes(detail: ArmsDetail) -> list[str]:
    """Notes on the arms without what their rows say already."""
    told = {f"arm {arm.name}: {arm.status}: {arm.reason}" for arm in detail.arms}
    told |= {f"arm {arm.name}: {arm.verdict.reason}" for arm in detail.arms if arm.verdict}
    told |= {note for arm in detail.arms for note in drift_notes(arm)}
    return [note for note in detail.notes if note not in told]
