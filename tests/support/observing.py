"""What is left of a run, as seen from outside: states in Prefect and MLflow, processes, ports."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil

RUNS_ENV = "RETRAIN_DSPARK_RUNS"


def until(true: Callable[[], Any], wait_s: float = 120.0, what: str = "it", every_s: float = 0.1) -> Any:
    """The first true value of `true()`; AssertionError if there is none within `wait_s`."""
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        value = true()
        if value:
            return value
        time.sleep(every_s)
    raise AssertionError(f"{what} did not come true within {wait_s:.0f} s")


def facts_of(run: Path) -> dict[str, Any]:
    """`run.json`; empty while there is none."""
    path = run / "run.json"
    try:
        facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return facts


def only_run(root: Path) -> Path:
    """The one run under the root."""
    [path] = root.glob("*/profile.json")
    return path.parent


def run_of(root: Path, flow_run_id: str) -> Path | None:
    """The run folder that a flow run made or resumed."""
    for path in root.glob("*/run.json"):
        if flow_run_id in facts_of(path.parent).get("flow_run_ids", []):
            return path.parent
    return None


def prefect_state(api: str, flow_run_id: str) -> tuple[str, str]:
    """Name and message of a flow run's state."""
    from prefect.client.orchestration import SyncPrefectClient

    with SyncPrefectClient(api=api) as client:
        state = client.read_flow_run(UUID(flow_run_id)).state
    assert state is not None
    return str(state.name), state.message or ""


def final_state(api: str, flow_run_id: str) -> tuple[str, str] | None:
    """Name and message of the state that a flow run ended in; None while it goes on."""
    from prefect.client.orchestration import SyncPrefectClient

    with SyncPrefectClient(api=api) as client:
        state = client.read_flow_run(UUID(flow_run_id)).state
    return (str(state.name), state.message or "") if state is not None and state.is_final() else None


def flow_runs(api: str) -> int:
    """How many flow runs Prefect knows."""
    import httpx

    return int(httpx.post(f"{api}/flow_runs/count", json={}, timeout=30).json())


def mlflow_runs(root: Path, run_id: str) -> dict[str, tuple[str, str]]:
    """`parent` or stage -> (status, MLflow run id), for one pipeline run."""
    from mlflow import MlflowClient

    if not (root / "mlflow.db").exists():
        return {}
    client = MlflowClient(tracking_uri=f"sqlite:///{root / 'mlflow.db'}")
    experiments = [found.experiment_id for found in client.search_experiments()]
    found = {run.data.tags.get("dspark.key", ""): run for run in client.search_runs(experiments)}
    return {
        key.partition(":")[2] or "parent": (run.info.status, run.info.run_id)
        for key, run in found.items()
        if key.partition(":")[0] == run_id
    }


def statuses(runs: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    return {name: status for name, (status, _) in runs.items()}


def processes_of(root: Path) -> dict[int, str]:
    """Living processes of runs under `root`: by their environment, their marker, or the guard's argument."""
    found = {}
    for process in psutil.process_iter():
        try:
            with process.oneshot():
                line = " ".join(process.cmdline())
                environment = Path(f"/proc/{process.pid}/environ").read_bytes()
                mark = f"{RUNS_ENV}={root}".encode() in environment.split(b"\0")
                if (mark or str(root) in line) and process.status() != psutil.STATUS_ZOMBIE:
                    found[process.pid] = line
        except (psutil.Error, OSError):
            continue
    return found


def is_alive(process: psutil.Process) -> bool:
    """The very same process, neither a zombie nor another one that got its number."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def busy_ports(run: Path, ports: set[int]) -> set[int]:
    """Those of `ports` that somebody still answers on."""
    busy = set()
    for port in ports:
        with socket.socket() as client:
            client.settimeout(1)
            if client.connect_ex(("127.0.0.1", port)) == 0:
                busy.add(port)
    return busy


def registered(run: Path) -> dict[str, dict[str, Any]]:
    """Entries of the run's registry of processes, by name."""
    found = {}
    for path in (run / "services").glob("*.json"):
        try:
            found[path.stem] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
    return found
