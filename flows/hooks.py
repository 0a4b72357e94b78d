"""What Prefect calls when a flow run ends badly, often in another process than the one that ran it.

Nothing in memory is known here: everything is found on disk by the id of the flow run.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from flows.closing import close_folder
from flows.finding import run_of_flow_run
from tasks.processes.registry import reap
from tasks.run_folder import RunFolder, run_root
from tasks.tracking import close_runs

log = logging.getLogger("retrain_dspark")


def name_of_flow_run() -> str:
    """Name of the flow run: the profile and the start of its id, or the run that it resumes."""
    from prefect.runtime import flow_run

    parameters: dict[str, Any] = flow_run.parameters or {}
    if parameters.get("run_id"):
        return str(parameters["run_id"])
    profile = parameters.get("profile", "laptop")
    name = getattr(profile, "name", None) or (profile.get("name") if isinstance(profile, dict) else profile)
    return f"{name}-{str(flow_run.id)[:8]}"


def close_run(flow: Any, flow_run: Any, state: Any) -> None:
    """End the processes of a failed, crashed or cancelled flow run and close its MLflow runs."""
    run = _folder(str(flow_run.id))
    if run is None:
        return
    for line in reap(run.services):
        log.info(line)
    cancelled = state.is_cancelled() or state.is_cancelling() or state.is_crashed()
    try:
        close_runs(run.path.parent, run.run_id, "KILLED" if cancelled else "FAILED")
    except Exception as error:
        log.warning("MLflow runs of %s stay open until the next start: %s", run.run_id, error)
    close_folder(run, "cancelled" if cancelled else "failed")


def _folder(flow_run_id: str) -> RunFolder | None:
    """The run folder, also where the hook runs in a process with another working directory."""
    for root in dict.fromkeys((run_root(), Path(__file__).resolve().parent.parent / "runs")):
        run = run_of_flow_run(root, flow_run_id)
        if run is not None:
            return run
    return None
