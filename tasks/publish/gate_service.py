"""What users would notice: texts that decay, and latency targets that are missed."""

from __future__ import annotations

from profiles.evaluation import Slo
from tasks.evaluate.models import EvaluationReport
from tasks.evaluate.worth.models import Objective
from tasks.evaluate.worth.objectives import asked, highest_met, objectives
from tasks.evaluate.worth.points import DRAFT, PLAIN, usable


def text_faults(evaluation: EvaluationReport) -> list[str]:
    """Checks of the texts that do not match those of the target alone."""
    if evaluation.text is None:
        return ["no text was compared with the target's own: run evaluate again (--from evaluate)"]
    runs = "two runs (A/A)" if evaluation.text.runs > 1 else "one run"
    return [
        f"{one.what} of the answers: {_shown(one.what, one.draft)} with the draft, "
        f"{_shown(one.what, one.target)} in {runs} of the target alone, on {one.prompts} prompts "
        f"(p = {one.p_value:.4f})"
        for one in evaluation.text.checks
        if one.differs
    ]


def _shown(what: str, value: float) -> str:
    return f"{value:.1f} tokens" if what == "length" else f"{value:.1%}"


def objective_faults(slo: Slo, evaluation: EvaluationReport) -> tuple[list[str], list[str]]:
    """Targets of the profile that the draft misses, and a remark where they cannot be judged.

    The draft must meet them at some concurrency, and up to the one up to which the target alone meets them:
    a draft that helps one user and costs the crowd its service is not better.
    """
    if not asked(slo):
        return [], []
    measured = evaluation.worth.measured if evaluation.worth else None
    if measured is None or not measured.points:
        return [
            "the profile sets service targets (evaluate.slo), and no load was measured (evaluate.load)"
        ], []
    if not measured.speed_is_meaningful:
        return [], ["service targets were not judged: speeds of Triton's interpreter mean nothing"]
    cells, left_out = usable(measured.points, measured.differences)
    found = objectives(cells, slo)
    if not any(one.arm == DRAFT for one in found):
        why = "; ".join(one.reason for one in left_out) or "it has no point"
        return [f"service targets cannot be judged: no load of the draft can be used ({why})"], []
    best, alone = highest_met(found, DRAFT), highest_met(found, PLAIN)
    if best is None:
        return [f"service targets are not met with the draft at any concurrency: {_misses(found)}"], []
    if alone is not None and best < alone:
        fault = f"service targets are met up to concurrency {best} with the draft and up to {alone} without"
        return [f"{fault}: {_misses(found, above=best)}"], []
    return [], [f"service targets are met up to concurrency {best}"]


def _misses(found: tuple[Objective, ...], above: int = 0) -> str:
    """What is missed at the lowest concurrency above one."""
    missed = [one for one in found if one.arm == DRAFT and not one.met and one.concurrency > above]
    first = min(missed, key=lambda one: one.concurrency, default=None)
    return f"at {first.concurrency} {', '.join(first.misses)}" if first else "nothing was measured there"
