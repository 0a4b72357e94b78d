"""Closes a run folder: `summary.json`, `report.html` and the time it ended, whatever the ending was."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from tasks.execute import StageRow
from tasks.report.finish import finish_report
from tasks.report.summary import build_summary
from tasks.run_folder import RunFolder


def close_folder(
    run: RunFolder,
    status: str,
    rows: Sequence[StageRow] | None = None,
    error: Exception | None = None,
    seconds: float | None = None,
) -> dict[str, Any]:
    """Write the summary and the report; a run that is closed already keeps what it has.

    Args:
        status: `completed`, `failed` or `cancelled`; a completed run that did not promote becomes `held`.
        rows: Stages of this attempt; None takes what the folder tells.
        error: What ended this attempt early.
        seconds: Length of this attempt.
    """
    if "ended_at" in run.facts():
        return {}
    summary = finish_report(
        run, rows if rows is not None else _found(run), status, error=error, seconds=seconds
    )
    run.remember(status=summary["status"], ended_at=datetime.now(UTC).isoformat(timespec="seconds"))
    return summary


def _found(run: RunFolder) -> list[StageRow]:
    """Stages of a run whose process is gone, from what its folder holds."""
    stages = build_summary(run)["stages"]
    return [StageRow(row["name"], row["status"], row["seconds"] or 0.0) for row in stages]
