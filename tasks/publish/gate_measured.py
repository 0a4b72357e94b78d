"""What a measurement itself says against a draft: it is not whole, or answers differ."""

from __future__ import annotations

from tasks.evaluate.models import EvaluationReport
from tasks.stream.models import CaptureManifest
from tasks.train.models import DraftCheckpoint


def training_faults(draft: DraftCheckpoint, captures: CaptureManifest) -> list[str]:
    """An untrained draft, or one that did not see everything it should have."""
    faults = []
    if draft.steps == 0:
        faults.append("the draft is untrained: 0 optimizer steps")
    if captures.counters.lost:
        faults.append(f"{captures.counters.lost} captures were lost")
    return faults


def measurement_faults(max_failed: float, evaluation: EvaluationReport) -> list[str]:
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
    alone = [d for d, tau in evaluation.replay.domains.items() if tau.prompts == 1]
    if alone:
        faults.append(
            f"replay: only one prompt in {', '.join(alone)}, so no interval can say how much prompts differ; "
            "raise prompts.evaluate_per_domain"
        )
    if not evaluation.live_valid:
        faults.append(
            "the live measurement cannot be used: " + ("; ".join(evaluation.notes) or "no reason given")
        )
    if not evaluation.arms:
        faults.append("no server was measured")
    for arm in evaluation.arms:
        if arm.requests == 0:
            faults.append(f"{arm.name}: no request was made")
        elif arm.failed > max_failed * arm.requests:
            faults.append(f"{arm.name}: {arm.failed} of {arm.requests} requests failed")
    return faults


def losslessness_faults(max_live_gap: float, evaluation: EvaluationReport) -> list[str]:
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
    elif evaluation.live_gap > max_live_gap:
        faults.append(
            f"live ({_tau(live)}) and replay ({_tau(replay)}) differ by {evaluation.live_gap:.2%} on the "
            f"common prompts, more than {max_live_gap:.2%}"
        )
    return faults


def _tau(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"
