"""Promote or hold: pure, from what was measured. Every reason is said, not only the first."""

from __future__ import annotations

import random
from dataclasses import dataclass

from profiles.schema import DOMAINS, Profile
from tasks.evaluate.models import EvaluationReport, Measurement, PromptCount
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
    bootstrap_samples: int
    seed: int


def rules_of(profile: Profile) -> Rules:
    evaluate = profile.evaluate
    return Rules(
        margin=profile.publish.margin,
        max_live_gap=evaluate.max_live_gap,
        max_failed=evaluate.live.max_failed,
        confidence=evaluate.confidence,
        bootstrap_samples=evaluate.bootstrap_samples,
        seed=evaluate.seed,
    )


def decide(
    rules: Rules, evaluation: EvaluationReport, draft: DraftCheckpoint, captures: CaptureManifest
) -> Decision:
    """Decide from the evaluation; promotion needs that nothing speaks against it and that it is better."""
    against = [
        *training_faults(draft, captures),
        *measurement_faults(rules, evaluation),
        *losslessness_faults(rules, evaluation),
    ]
    better, comparison = compare(rules, evaluation)
    macro = evaluation.replay.macro
    incumbent = evaluation.incumbent_replay.macro.value if evaluation.incumbent_replay else 1.0
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
    for name, measured in (("replay", evaluation.replay), ("live", evaluation.live)):
        empty = [d for d in DOMAINS if d not in measured.domains or measured.domains[d].prompts == 0]
        if empty:
            faults.append(f"{name}: no prompts in {', '.join(empty)}")
        silent = [d for d, tau in measured.domains.items() if tau.prompts and tau.rounds == 0]
        if measured.pooled.rounds == 0 or measured.pooled.value is None:
            faults.append(f"{name}: no drafts were observed, so nothing was measured")
        elif silent:
            faults.append(f"{name}: no drafts were observed in {', '.join(silent)}")
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
            f"with the draft, {len(wrong)} of {len(evaluation.comparisons)} answers differ from the target's own"
        )
    live, replay = evaluation.live.pooled.value, evaluation.common_replay_pooled
    if evaluation.live_gap is None:
        faults.append("live and replay have no prompts in common, so neither confirms the other")
    elif evaluation.live_gap > rules.max_live_gap:
        faults.append(
            f"live ({_tau(live)}) and replay ({_tau(replay)}) differ by {evaluation.live_gap:.2%} on the common "
            f"prompts, more than {rules.max_live_gap:.2%}"
        )
    return faults


def compare(rules: Rules, evaluation: EvaluationReport) -> tuple[bool, str]:
    """Is the candidate better by more than the margin, by the lower bound? With the sentence that says so."""
    macro, old = evaluation.replay.macro, evaluation.incumbent_replay
    if macro.value is None or macro.low is None:
        return False, "the candidate's acceptance length is unknown"
    level = f"{rules.confidence:.0%}"
    if evaluation.incumbent is None:
        better = macro.low > 1.0 + rules.margin
        return better, (
            f"first draft: macro acceptance length {macro.value:.3f}, lower {level} bound {macro.low:.3f}, "
            f"{'above' if better else 'not above'} {1.0 + rules.margin:.3f}"
        )
    if old is None or old.macro.value is None:
        return False, f"the incumbent {evaluation.incumbent} was not measured on the same prompts"
    low, how = difference_low(rules, evaluation.replay, old)
    better = low > rules.margin
    return better, (
        f"macro acceptance length {macro.value:.3f} against {old.macro.value:.3f} of {evaluation.incumbent}: "
        f"difference {macro.value - old.macro.value:+.3f}, lower {level} bound {low:+.3f} ({how}), "
        f"{'above' if better else 'not above'} {rules.margin:.3f}"
    )


def difference_low(rules: Rules, new: Measurement, old: Measurement) -> tuple[float, str]:
    """Lower bound of candidate minus incumbent in macro acceptance length, and how it was found.

    Paired over prompts where both measured the same ones; else from the two intervals, which is wider.
    """
    pairs = paired_domains(new.per_prompt, old.per_prompt)
    if pairs and set(pairs) == set(new.domains) == set(old.domains):
        common = sum(len(rows) for rows in pairs.values())
        return paired_low(pairs, rules), f"paired over {common} prompts"
    high = old.macro.high if old.macro.high is not None else old.macro.value
    return (new.macro.low or 0.0) - (high or 0.0), "unpaired"


Pair = tuple[PromptCount, PromptCount]


def paired_domains(new: dict[str, PromptCount], old: dict[str, PromptCount]) -> dict[str, list[Pair]]:
    """Domain -> (candidate, incumbent) counts of each prompt that both measured; {} if a domain differs."""
    pairs: dict[str, list[Pair]] = {}
    for prompt_id in sorted(new.keys() & old.keys()):
        mine, theirs = new[prompt_id], old[prompt_id]
        if mine.domain != theirs.domain:
            return {}
        pairs.setdefault(mine.domain, []).append((mine, theirs))
    return pairs


def paired_low(pairs: dict[str, list[Pair]], rules: Rules) -> float:
    """Bootstrap bound: prompts are drawn within each domain, both drafts with the same prompts."""
    chance = random.Random(rules.seed)
    draws = []
    for _ in range(rules.bootstrap_samples):
        per_domain = []
        for rows in pairs.values():
            drawn = chance.choices(rows, k=len(rows))
            per_domain.append(_pooled([a for a, _ in drawn]) - _pooled([b for _, b in drawn]))
        draws.append(sum(per_domain) / len(per_domain))
    draws.sort()
    return draws[int((1 - rules.confidence) / 2 * len(draws))]


def _pooled(counts: list[PromptCount]) -> float:
    rounds = sum(count.rounds for count in counts)
    return 1.0 + sum(count.accepted for count in counts) / rounds if rounds else 1.0


def _tau(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"
