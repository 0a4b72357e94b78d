"""The end of a run: summary and page, whatever happened before."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Protocol

from tasks.errors import HardwareError
from tasks.report.record import record_error
from tasks.report.summary import build_summary, write_summary
from tasks.run_folder import RunFolder

log = logging.getLogger("retrain_dspark")


class EndedStage(Protocol):
    """How a stage ended, as the flow knows it."""

    name: str
    status: str
    seconds: float
    reason: str


def finish_report(
    run: RunFolder,
    stages: Iterable[EndedStage],
    status: str,
    *,
    error: BaseException | None = None,
    seconds: float | None = None,
    tracking_uri: str | None = None,
    parent_run_id: str | None = None,
    flow_run_id: str | None = None,
) -> dict[str, Any]:
    """Write `summary.json` and `report.html`.

    A page that cannot be drawn is logged and changes nothing: the run's result does not depend on it.

    Args:
        stages: The stages that were reached; one with the status `failed` is where the error belongs.
        status: `completed`, `held`, `failed` or `cancelled`; `completed` becomes `held` by the decision.
        error: What ended the run early.

    Returns:
        The summary.
    """
    rows = list(stages)
    run.remember(stage_reasons={row.name: row.reason for row in rows if row.reason}, error=None)
    if error is not None:
        stage = next((row.name for row in rows if row.status == "failed"), None)
        if stage is None and isinstance(error, HardwareError):
            stage = "validate"  # its report is stored and complete; what it found ends the run
        record_error(run, stage, error)
    summary = build_summary(
        run,
        [{"name": row.name, "status": row.status, "seconds": row.seconds} for row in rows],
        status,
        seconds=seconds,
        tracking_uri=tracking_uri,
        parent_run_id=parent_run_id,
        flow_run_id=flow_run_id,
    )
    write_summary(run, summary)
    try:
        from tasks.report.page import write_figures, write_report

        write_report(run)
        write_figures(run)
    except Exception as fault:  # drawing libraries fail in many ways; the run's outcome must not change
        log.warning("the report page was not written: %s: %s", type(fault).__name__, fault)
    return summary
