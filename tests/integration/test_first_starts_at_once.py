"""Two first runs in an empty run root make its databases at the same time; both stay usable."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tasks.processes.ports import free_port

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]
READY_S = 240
RECORD = """
import sys, time
from pathlib import Path
from mlflow import MlflowClient
from tasks.tracking import MlflowSink
root, name = Path(sys.argv[1]), sys.argv[2]
Path(f"{root}-{name}").touch()
while len(list(root.parent.glob(root.name + "-*"))) < 2:
    time.sleep(0.001)
print(MlflowSink("drafts", root)({"op": "open", "key": name, "name": name, "tags": {}}))
"""


def environment(root: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    return {**kept, "RETRAIN_DSPARK_RUNS": str(root), "PREFECT_HOME": str(root / ".prefect")}


def test_two_first_records_in_mlflow(tmp_path: Path) -> None:
    """Both runs are in one experiment of one database that opens again."""
    from mlflow import MlflowClient

    root = tmp_path / "runs"
    both = [
        subprocess.Popen(
            (sys.executable, "-c", RECORD, str(root), name),
            env=environment(root),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name in ("a", "b")
    ]
    outputs = [process.communicate(timeout=READY_S)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    client = MlflowClient(tracking_uri=f"sqlite:///{root / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("drafts")
    assert experiment is not None
    assert {run.info.run_name for run in client.search_runs([experiment.experiment_id])} == {"a", "b"}


def test_two_first_servers_of_prefect(tmp_path: Path) -> None:
    """Both temporary servers answer; neither finds a half-made database."""
    ports = [free_port(), free_port()]
    both = [
        subprocess.Popen(
            (sys.executable, "-m", "flows.cli.prefect_server", str(os.getpid()), str(port)),
            env=environment(tmp_path),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for port in ports
    ]
    try:
        deadline = time.monotonic() + READY_S
        while not all(answers(port) for port in ports):
            assert [process.poll() for process in both] == [None, None]
            assert time.monotonic() < deadline
            time.sleep(0.2)
    finally:
        for process in both:
            process.terminate()
        outputs = [process.communicate(timeout=60)[0] for process in both]
    assert not any("Traceback" in output for output in outputs), outputs


def answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/api/health", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False
