"""Promote or hold: pure, from what was measured. Every reason is said, not only the first."""

from __future__ import annotations

from dataclasses import dataclass

from profiles.schema import Profile
from tasks.evaluate.models import EvaluationReport
from tasks.publish.models import Decision
from tasks.stream.models import CaptureManifest
from tasks.train.models import DraftCheckpoint


@dataclass(frozen=True)
class Rules:
    """Limits of the decision, from the profile."""

    margin: float
    max_live_gap: float
    max_failed: float
    confidence: float


def rules_of(profile: Profile) -> Rules:
    evaluate = profile.evaluate
    return Rules(
        margin=profile.publish.margin,
        max_live_gap=evaluate.max_live_gap,
        max_failed=evaluate.live.max_failed,
        confidence=evaluate.confidence,
    )


def decide(
    rules: Rules,
    evaluation: EvaluationReport,
    draft: DraftCheckpoint,
    captures: CaptureManifest,
    champion: str | None,
) -> Decision:
    """Decide from the evaluation; promotion needs that nothing speaks against it and that it is better.

    Args:
        champion: Version that is served now; None before the first publication.
    """
    against = [
        *training_faults(draft, captures),
        *measurement_faults(rules, evaluation),
        *losslessness_faults(rules, evaluation),
    ]
    better, comparison = compare(rules, evaluation, champion)
    macro = evaluation.replay.macro
    old = evaluation.incumbent_replay
    incumbent = 1.0 if champion is None else old.macro.value if old else None
    return Decision(
        promote=better and not against,
        reasons=(*against, comparison),
        candidate_tau_macro=macro.value,
        candidate_low=macro.low,
        incumbent_tau_macro=incumbent,
        margin=rules.margin,
    )


def training_faults(draft: DraftCheckpoint, captures: CaptureManifest) -> list[str]:
    """An untrained draft, or one that did not see everything it should have."""
    faults = []
    if draft.steps == 0:
        faults.append("the draft is untrained: 0 optimizer steps")
    if captures.counters.lost:
        faults.append(f"{captures.counters.lost} captures were lost")
    return faults


def measurement_faults(rules: Rules, evaluation: EvaluationReport) -> list[str]:
    """Measurements that measured nothing, or not everything."""
    faults = []
    wanted = {**evaluation.replay.domains, **evaluation.live.domains}  # whatever the user's domains are
    for name, measured in (("replay", evaluation.replay), ("live", evaluation.live)):
        empty = [d for d in wanted if d not in measured.domains or measured.domains[d].prompts == 0]
        if empty:
            faults.append(f"{name}: no prompts in {', '.join(empty)}")
        silent = [d for d, tau in measured.domains.items() if tau.prompts and tau.rounds == 0]
        if measured.pooled.rounds == 0 or measured.pooled.value is None:
            faults.append(f"{name}: no drafts were observed, so nothing was measured")
        elif silent:
            faults.append(f"{name}: no drafts were observed in {', '.join(silent)}")
    if not evaluation.live_valid:
        faults.append(
            "the live measurement cannot be used: " + ("; ".join(evaluation.notes) or "no reason given")
        )
    if not evaluation.arms:
        faults.append("no server was measured")
    for arm in evaluation.arms:
        if arm.requests == 0:
            faults.append(f"{arm.name}: no request was made")
        elif arm.failed > rules.max_failed * arm.requests:
            faults.append(f"{arm.name}: {arm.failed} of {arm.requests} requests failed")
    return faults


def losslessness_faults(rules: Rules, evaluation: EvaluationReport) -> list[str]:
    """Outputs that differ from the target's own, or a replay that live measurement does not confirm."""
    faults = []
    if evaluation.lossless == "different":
        wrong = [c for c in evaluation.comparisons if not c.equal]
        faults.append(
            f"with the draft, {len(wrong)} of {len(evaluation.comparisons)} answers "
            "differ from the target's own"
        )
    if not evaluation.comparisons:
        faults.append("no answer was compared with the target's own, so losslessness was not shown")
    live, replay = evaluation.live.pooled.value, evaluation.common_replay_pooled
    if evaluation.live_gap is None:
        faults.append("live and replay have no prompts in common, so neither confirms the other")
    elif evaluation.live_gap > rules.max_live_gap:
        faults.append(
            f"live ({_tau(live)}) and replay ({_tau(replay)}) differ by {evaluation.live_gap:.2%} on the "
            f"common prompts, more than {rules.max_live_gap:.2%}"
        )
    return faults


def compare(rules: Rules, evaluation: EvaluationReport, champion: str | None) -> tuple[bool, str]:
    """Is the candidate better by more than the margin, by the lower bound? With the sentence that says so."""
    macro, level = evaluation.replay.macro, f"{rules.confidence:.0%}"
    if macro.value is None or macro.low is None:
        return False, "the candidate's acceptance length is unknown"
    if champion is None:
        better = macro.low > 1.0 + rules.margin
        return better, (
            f"first draft: macro acceptance length {macro.value:.3f}, lower {level} bound {macro.low:.3f}, "
            f"{'above' if better else 'not above'} {1.0 + rules.margin:.3f}"
        )
    gain, old = evaluation.incumbent_gain, evaluation.incumbent_replay
    if evaluation.incumbent != champion or gain is None or gain.low is None or old is None:
        return False, f"the champion {champion} was not measured on the same prompts, so nothing shows a gain"
    better = gain.low > rules.margin
    return better, (
        f"macro acceptance length {macro.value:.3f} against {_tau(old.macro.value)} of {champion}: "
        f"difference {gain.value:+.3f}, paired by prompt, lower {level} bound {gain.low:+.3f}, "
        f"{'above' if better else 'not above'} {rules.margin:.3f}"
    )


def _tau(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"
