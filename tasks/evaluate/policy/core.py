"""Calibration and policy of one replay: reads the slots, writes two files, returns the report."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from profiles.evaluation import Evaluate
from tasks.evaluate.models import EvaluationReport
from tasks.evaluate.policy.calibration import calibrate, calibration_notes
from tasks.evaluate.policy.costs import sweep_costs
from tasks.evaluate.policy.models import CostTable, PolicyReport, Recommended, SimulatedLoad
from tasks.evaluate.policy.options import ADAPTIVE_NEEDS, BY_BATCH_NEEDS, by_batch_size
from tasks.evaluate.policy.recommend import MIN_PROMPTS, replayed, simulate
from tasks.evaluate.policy.slots import SUFFIX, fit_half, prompt_keys, read_slots
from tasks.measure.intervals import Bootstrap
from tasks.stage import write_atomic

CALIBRATION_FILE = "confidence_calibration.json"
COSTS_FILE = "cost_table.json"
_AS_MEASURED: Mapping[str, Any] = {"method": "dspark"}


def with_policy(
    report: EvaluationReport,
    slots_file: Path,
    settings: Evaluate,
    folder: Path,
    *,
    base: Mapping[str, Any] = _AS_MEASURED,
    draft: str = "",
    captures: str = "",
) -> EvaluationReport:
    """The report with its policy; as it is if replay wrote no slots.

    Arguments as for `policy_of`; the costs come from the report's own load sweep.
    """
    if not slots_file.exists():
        return report
    # The load sweep is another package's field: a report without one has no costs.
    costs, notes = sweep_costs(getattr(report, "load", None))
    found = policy_of(slots_file, costs, settings, folder, base=base, draft=draft, captures=captures)
    found = found.model_copy(update={"notes": (*notes, *found.notes)})
    return report.model_copy(update={"policy": found})


def policy_of(
    slots_file: Path,
    costs: CostTable | None,
    settings: Evaluate,
    folder: Path,
    *,
    base: Mapping[str, Any] = _AS_MEASURED,
    draft: str = "",
    captures: str = "",
) -> PolicyReport:
    """Calibrate the confidence head, play the load, and write what others can use.

    Writes `confidence_calibration.json` (if the draft has a confidence head) and `cost_table.json` (if there
    are costs).

    Args:
        slots_file: `<replay>.slots.safetensors`; the replay's rows lie beside it as `<replay>.jsonl`.
        costs: From `sweep_costs`; None leaves out everything that needs speeds.
        folder: Where the two files go.
        base: Speculative configuration under which the draft was measured.
        draft: Digest of the draft.
        captures: Digest of the captures.

    Raises:
        StageInputError: The slots file cannot be read.
    """
    slots = read_slots(slots_file)
    rows_file = slots_file.with_name(slots_file.name.removesuffix(SUFFIX) + ".jsonl")
    fitting = fit_half(prompt_keys(slots, rows_file))
    calibration = calibrate(slots, fitting, settings.policy, draft=draft, captures=captures)
    notes = [*slots.notes, *(calibration_notes(calibration) if calibration else ())]
    _write(folder / CALIBRATION_FILE, calibration)
    _write(folder / COSTS_FILE, costs)
    rounds = replayed(slots, fitting, calibration)
    loads: list[SimulatedLoad] = []
    advice: list[Recommended] = []
    if not rounds.walks.prompts:
        notes.append("nothing was drafted in the replay: there is no policy to recommend")
    elif costs is not None:
        how = Bootstrap(settings.bootstrap_samples, settings.confidence, settings.seed)
        loads, advice = simulate(rounds, costs, settings.policy, how, base)
        notes += [*costs.notes, *_policy_notes(loads, advice, rounds.walks.prompts)]
    schedule = by_batch_size(base, {one.concurrency: one.num_speculative_tokens for one in advice})
    return PolicyReport(
        calibration=calibration,
        costs=costs,
        recommendation=tuple(advice),
        simulation=tuple(loads),
        schedule_options=schedule,
        notes=(*notes, *((BY_BATCH_NEEDS,) if schedule else ())),
    )


def _write(path: Path, content: BaseModel | None) -> None:
    """Write a file, or remove that of an earlier measurement."""
    if content is None:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, content.model_dump_json(indent=2) + "\n")


def _policy_notes(loads: list[SimulatedLoad], advice: list[Recommended], prompts: int) -> list[str]:
    notes = []
    if prompts < MIN_PROMPTS:
        notes.append(
            f"policy: {prompts} prompts are too few to decide on adaptive verification ({MIN_PROMPTS} needed)"
        )
    outside = [str(one.concurrency) for one in advice if one.extrapolated]
    if outside:
        notes.append(
            f"policy: at concurrency {', '.join(outside)} costs are extrapolated beyond measured batches"
        )
    if any(one.adaptive_verification_helps for one in advice):
        notes.append(ADAPTIVE_NEEDS)
    budgets = [
        (load.concurrency, one.verified)
        for load in loads
        for one in load.policies
        if one.policy == "scheduler"
    ]
    grown = [c for (_, a), (c, b) in pairwise(budgets) if b > a * 1.02 + 0.01]
    if grown:
        notes.append(
            f"policy: the scheduler verifies more draft tokens per request at concurrency {grown[0]} than at "
            "the one before: the measured costs rise unevenly, by noise or by padding of batches"
        )
    return notes
