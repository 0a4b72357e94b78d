"""Promote or hold: pure, from what was measured and what people said. Every reason is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from profiles.evaluation import Slo
from profiles.schema import Profile
from tasks.evaluate.models import EvaluationReport
from tasks.publish.gate_compare import Compared, ToBeat, compare
from tasks.publish.gate_measured import losslessness_faults, measurement_faults, training_faults
from tasks.publish.gate_service import objective_faults, text_faults
from tasks.publish.models import Decision, Word
from tasks.stream.models import CaptureManifest
from tasks.train.models import DraftCheckpoint

__all__ = ["Rules", "ToBeat", "decide", "rules_of"]


@dataclass(frozen=True)
class Rules:
    """Limits of the decision, from the profile."""

    margin: float
    """Tokens per round, macro: the lower bound of the gain must be above it."""
    max_live_gap: float
    max_failed: float
    confidence: float
    max_domain_drop: float = 0.05
    """Share of the incumbent's acceptance length in a domain."""
    slo: Slo = field(default_factory=Slo)
    approval: bool = False
    """A person must agree."""


def rules_of(profile: Profile) -> Rules:
    evaluate, publish = profile.evaluate, profile.publish
    return Rules(
        margin=publish.margin,
        max_live_gap=evaluate.max_live_gap,
        max_failed=evaluate.live.max_failed,
        confidence=evaluate.confidence,
        max_domain_drop=publish.max_domain_drop,
        slo=evaluate.slo,
        approval=publish.approval.required,
    )


def decide(
    rules: Rules,
    evaluation: EvaluationReport,
    draft: DraftCheckpoint,
    captures: CaptureManifest,
    incumbent: ToBeat | None,
    words: Sequence[Word] = (),
    withdrawn: str = "",
) -> Decision:
    """Decide from the evaluation; promotion needs that nothing speaks against it and that it is better.

    Args:
        incumbent: What to beat; None before the first publication.
        words: What people said about this draft. The newest of each kind counts.
        withdrawn: Why this very draft was taken back after an earlier publication; empty if it was not.
    """
    service, remarks = objective_faults(rules.slo, evaluation)
    found = compare(
        evaluation, incumbent, margin=rules.margin, drop=rules.max_domain_drop, level=rules.confidence
    )
    against = [
        *training_faults(draft, captures),
        *measurement_faults(rules.max_failed, evaluation),
        *losslessness_faults(rules.max_live_gap, evaluation),
        *text_faults(evaluation),
        *service,
        *found.fallen,
        *([f"it was published before and taken back: {withdrawn}"] if withdrawn else []),
        *([] if found.better else [found.sentence]),
    ]
    spoken = {word.kind: word for word in words}
    force, approval = spoken.get("force"), spoken.get("approval")
    promote, waits, said = _heard(bool(against), rules.approval, approval, force)
    return Decision(
        promote=promote,
        reasons=(*against, *said, *([found.sentence] if found.better else [])),
        candidate_tau_macro=evaluation.replay.macro.value,
        candidate_low=evaluation.replay.macro.low,
        incumbent_tau_macro=_to_beat(found, evaluation),
        margin=rules.margin,
        against=tuple(against),
        remarks=(*found.remarks, *remarks),
        incumbent=incumbent.name if incumbent else None,
        standing=found.standing,
        waits=waits,
        words=tuple(words),
    )


def _heard(
    held: bool, needed: bool, approval: Word | None, force: Word | None
) -> tuple[bool, bool, list[str]]:
    """Whether to promote, whether that waits for a person, and sentences about people's words.

    Names and reasons stay out of the sentences: these are published with the card.
    """
    if force is not None and force.yes and held:
        return True, False, ["promoted by a person's word although the gate held it"]
    if approval is not None and not approval.yes:
        return False, False, ["a person looked at it and said no"]
    if held:
        return False, False, []
    agreed = next((word for word in (approval, force) if word is not None and word.yes), None)
    if agreed is not None:
        return True, False, ["a person looked at it and agreed"]
    if needed:
        return False, True, ["it passed the gate and waits for a person's word (publish.approval)"]
    return True, False, []


def _to_beat(found: Compared, evaluation: EvaluationReport) -> float | None:
    if found.standing in ("none", "unmeasured"):
        return 1.0 if found.first else None
    old = evaluation.incumbent_replay
    return old.macro.value if old else None
