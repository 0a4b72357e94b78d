"""The plan of a run as rows: what was planned, what it became, and what was found wrong beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.budget import HELD, held_so_far
from tasks.plan.keep import plan_of_run
from tasks.plan.models import Plan
from tasks.plan.render import key_rows
from tasks.plan.wording import span_text
from tasks.report import wording
from tasks.report.record import RunRecord


def planned(record: RunRecord, summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """Rows of the report's first section; None where a run has no plan."""
    plan = plan_of_run(record.run.path)
    if plan is None:
        return None
    return {
        "facts": [*key_rows(plan), *_held(record)],
        "risks": [
            {"severity": one.severity, "what": one.what, "where": one.where, "remedy": one.remedy}
            for one in plan.risks
        ],
        "stages": _stages(plan, summary),
        "flow": plan.flow.sentence,
    }


def _stages(plan: Plan, summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """Each stage with the time that was planned and the time that it took."""
    took = {row["name"]: row for row in summary["stages"]}
    rows = []
    for stage in plan.stages:
        row = took.get(stage.name, {})
        worked = row.get("status") == "completed" and row.get("seconds") is not None
        rows.append(
            {
                "name": stage.name,
                "work": stage.work,
                "planned": span_text(stage.seconds.value)
                if stage.seconds.value is not None
                else wording.MISSING,
                "took": span_text(row["seconds"]) if worked else str(row.get("status", wording.MISSING)),
                "origin": stage.seconds.origin,
            }
        )
    return rows


def _held(record: RunRecord) -> list[tuple[str, str]]:
    """What the run has really held; nothing where it was not counted."""
    if not (record.run.path / HELD).is_file():
        return []
    held = held_so_far(record.run.path)
    return [
        ("node-hours held, all attempts", f"{held.node_hours:.2f}"),
        ("GPU-hours held, all attempts", f"{held.gpu_hours:.2f}"),
    ]
