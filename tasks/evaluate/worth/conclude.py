"""From what was measured to the decision inputs: pure, and done again whenever they are shown.

Prices and targets are not part of what was measured. A profile that changes them gets another answer from
the same measurement.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from profiles.schema import Profile
from tasks.evaluate.models import EvaluationReport, Measurement, TauEstimate
from tasks.evaluate.worth.capacity import capacities
from tasks.evaluate.worth.costs import break_even, spent
from tasks.evaluate.worth.models import Curve, Figure, LeftOut, Measured, Worth
from tasks.evaluate.worth.objectives import objectives
from tasks.evaluate.worth.pareto import front, matched
from tasks.evaluate.worth.points import DRAFT, PLAIN, Cells, arms_of, usable
from tasks.evaluate.worth.power import standard_error
from tasks.evaluate.worth.sentence import INCUMBENT, Evidence, say
from tasks.evaluate.worth.speedup import Spread, curve, noise_of


def conclude(
    report: EvaluationReport,
    measured: Measured,
    profile: Profile,
    seconds: Mapping[str, float],
    gpus_of_node: int | None = None,
) -> Worth:
    """Everything that a decision needs, from one evaluation.

    Args:
        measured: What was measured besides the rest of the report.
        seconds: Stage -> seconds of its work, for the GPU-hours spent.
        gpus_of_node: GPUs that the validate stage found on one node; None if it did not look.
    """
    settings = profile.evaluate
    cells, left_out = usable(measured.points, measured.differences)
    curves = curves_of(cells, prompt_spread(report, cells, settings.confidence), settings.confidence)
    main = next((one for one in curves if (one.arm, one.baseline) == (DRAFT, PLAIN)), None)
    found = objectives(cells, settings.slo)
    said = say(evidence(report, measured, profile, curves, cells))
    fronts = {arm: points for arm in arms_of(cells) if (points := front(cells, arm))}
    served = capacities(cells, found, settings.slo, measured.gpus_per_server)
    cost = spent(profile.hardware, seconds, gpus_of_node) if seconds else None
    return Worth(
        verdict=said.verdict,
        sentence=said.sentence,
        known=tuple(known(report, measured, main, cells, left_out)),
        measured=measured,
        curves=curves,
        fronts=fronts,
        matched=matched(fronts.get(PLAIN, ()), fronts.get(DRAFT, ()), settings.slo.tokens_per_s_per_user),
        objectives=found,
        left_out=left_out,
        power=said.power,
        spent=cost,
        break_even=break_even(settings.prices, cost, served, main, settings.slo.load_tokens_per_s),
        capacity=served,
    )


def evidence(
    report: EvaluationReport,
    measured: Measured,
    profile: Profile,
    curves: tuple[Curve, ...],
    cells: Cells,
) -> Evidence:
    """What the sentence is made of."""
    gain = report.incumbent_gain
    main = next((one for one in curves if (one.arm, one.baseline) == (DRAFT, PLAIN)), None)
    acceptance = acceptance_of(report)
    return Evidence(
        tau=figure(acceptance.macro),
        prompts=acceptance.pooled.prompts,
        block_size=report.block_size,
        lossless=report.lossless,
        compared=len(report.comparisons),
        different=sum(not one.equal for one in report.comparisons),
        confidence=profile.evaluate.confidence,
        speed_is_meaningful=measured.speed_is_meaningful,
        incumbent=report.incumbent,
        gain=Figure(value=gain.value, low=gain.low, high=gain.high) if gain else Figure(),
        curve=main if measured.speed_is_meaningful else None,
        rivals=tuple(one for one in curves if one.arm == DRAFT and one.baseline != PLAIN),
        objectives=objectives(cells, profile.evaluate.slo) if measured.speed_is_meaningful else (),
        best_k=measured.best_k,
        swept=bool(measured.points),
        others=other_arms(report),
        live=figure(report.live_per_step.macro),
    )


def acceptance_of(report: EvaluationReport) -> Measurement:
    """Replay, which has intervals; tokens per step of the engine where nothing was replayed.

    On servers that run already the arm may be one that drafts in some steps only.
    """
    return report.shown


def other_arms(report: EvaluationReport) -> dict[str, Figure]:
    """Tokens per step of the arms that also speculate.

    Not of one whose answers are wrong, nor of an incumbent that was compared by replay already.
    """
    arms = report.arms_detail.arms if report.arms_detail else ()
    return {
        arm.name: figure(arm.tokens_per_step.macro)
        for arm in arms
        if arm.acceptance is not None
        and arm.tokens_per_step is not None
        and arm.name != report.decided
        and not (arm.verdict is not None and arm.verdict.lossless == "different")
        and not (arm.name == INCUMBENT and report.incumbent_gain is not None)
    }


def figure(tau: TauEstimate) -> Figure:
    return Figure(value=tau.value, low=tau.low, high=tau.high)


def curves_of(cells: Cells, prompts: float | None, confidence: float) -> tuple[Curve, ...]:
    """Every arm over plain, the draft first; then the draft over every other arm.

    Where both arms speculate, the choice of prompts acts on both, so that part of the interval is wider.
    """
    noise = noise_of(cells)
    others = [arm for arm in arms_of(cells) if arm not in (DRAFT, PLAIN)]
    over_plain = [(arm, PLAIN, 1.0) for arm in arms_of(cells) if arm != PLAIN]
    over_others = [(DRAFT, arm, math.sqrt(2)) for arm in others]
    drawn = [
        curve(cells, arm, baseline, Spread(noise, prompts * wider if prompts else None, confidence))
        for arm, baseline, wider in (*over_plain, *over_others)
    ]
    return tuple(one for one in drawn if one.points)


def prompt_spread(report: EvaluationReport, cells: Cells, confidence: float) -> float | None:
    """Relative standard error of the acceptance length under load from the choice of prompts.

    The bootstrap's error belongs to the prompts that were replayed; a load point of fewer requests saw fewer.
    """
    pooled = acceptance_of(report).pooled
    error = standard_error(figure(pooled), confidence)
    if error is None or pooled.value is None or not pooled.prompts:
        return None
    asked = [point.requests for cell in cells.values() if cell.arm == DRAFT for point in cell.points]
    fewest = min([pooled.prompts, *asked])
    return error / pooled.value * math.sqrt(pooled.prompts / fewest)


def known(
    report: EvaluationReport,
    measured: Measured,
    main: Curve | None,
    cells: Cells,
    left_out: tuple[LeftOut, ...],
) -> list[str]:
    """What bounds the sentence; every line is true by itself."""
    lines = []
    if measured.points and not measured.speed_is_meaningful:
        lines.append("Speeds were taken under Triton's interpreter; they test the path and mean nothing.")
    if main is not None and main.noise is None:
        lines.append(
            "No load point was measured twice: the intervals of speed-ups cover the choice of prompts, not "
            "how measurements of this machine vary."
        )
    if main is not None and acceptance_of(report).pooled.low is None:
        lines.append("Acceptance has no interval: those of speed-ups cover repetition only.")
    rates = sum(point.request_rate is not None for point in measured.points)
    if rates:
        lines.append(f"{rates} points of the rate sweep are no part of the speed-up curve.")
    both = {c for arm, c in cells if arm == DRAFT} ^ {c for arm, c in cells if arm == PLAIN}
    if both and cells:
        lines.append(f"Concurrency {', '.join(map(str, sorted(both)))} was measured for one arm only.")
    lines += [f"Left out: {one.arm} at {one.concurrency}, {one.reason}." for one in left_out]
    return lines
