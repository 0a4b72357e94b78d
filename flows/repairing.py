"""Repairs what dead runs left: processes, run folders, MLflow runs and flow runs that still say running."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any
from uuid import UUID

from flows.closing import close_folder
from flows.finding import abandoned
from flows.settling import settle_all
from tasks.processes.registry import reap_stale
from tasks.tracking import repair_runs

log = logging.getLogger("retrain_dspark")


def repair(root: Path, change: bool = True, own_flow_run: str = "") -> list[str]:
    """Close everything whose owner process of this host has ended; live runs are never touched.

    A run whose flow run cannot be marked now, as Prefect does not answer, stays open for the next repair.

    Args:
        change: False only tells what would be done.
        own_flow_run: Flow run of the caller; a retry has the id of the attempt that was killed.

    Returns:
        One line for each thing that was (or would be) repaired.
    """
    lines = reap_stale(root) if change else []
    for run in list(abandoned(root)):
        flow_run_id = str(run.facts().get("flow_run_id", ""))
        lines.append(f"{run.run_id}: its process had ended")
        if not change:
            continue
        try:
            lines += _crash_flow_run(flow_run_id) if flow_run_id != own_flow_run else []
            close_folder(run, "cancelled")
        except Exception as error:
            log.warning("flow run %s could not be marked as crashed: %s", flow_run_id, error)
    try:
        lines += [f"MLflow run {key}: its process had ended" for key in repair_runs(root, change)]
    except Exception as error:
        log.warning("MLflow runs were not looked through: %s", error)
    return [*lines, *settle_all(root, change)]


def _crash_flow_run(flow_run_id: str) -> list[str]:
    """Mark a flow run whose process is gone as crashed, unless Prefect knows that it ended."""
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound
    from prefect.states import Crashed

    if not flow_run_id:
        return []
    with get_client(sync_client=True) as client:
        try:
            flow_run = client.read_flow_run(UUID(flow_run_id))
        except ObjectNotFound:
            return []
        if flow_run.state is None or flow_run.state.is_final():
            return []
        state: Any = Crashed(message="The process of this run ended without closing it.")
        client.set_flow_run_state(flow_run.id, state, force=True)
        return [f"flow run {flow_run.name}: marked as crashed"]
