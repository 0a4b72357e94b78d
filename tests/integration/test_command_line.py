"""The command line around small stages: endings, statuses in Prefect and MLflow, and nothing left running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import pytest

STUB = Path(__file__).parents[1] / "fakes" / "stubbed_cli.py"
pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One real Prefect API for all tests here."""
    from flows.cli.prefect_server import prefect_api, wait_until_ready

    home = tmp_path_factory.mktemp("prefect")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_HOME", str(home))
        patch.setenv("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
        patch.setenv("RETRAIN_DSPARK_RUNS", str(home))
        with prefect_api() as url:
            wait_until_ready(url)
            yield url


@pytest.fixture
def start(tmp_path: Path, api: str) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def run(*words: str, **env: str) -> subprocess.Popen[str]:
        given = {
            "PREFECT_API_URL": api,
            "RETRAIN_DSPARK_RUNS": str(tmp_path / "runs"),
            "STUB_TRACE": str(tmp_path / "trace"),
        }
        process = subprocess.Popen(
            (sys.executable, str(STUB), *words),
            env={**os.environ, **given, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()


def until(true: Callable[[], Any], wait_s: float = 120.0) -> Any:
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        value = true()
        if value:
            return value
        time.sleep(0.1)
    raise AssertionError("it did not come true")


def facts_of(runs: Path) -> dict[str, Any]:
    path = next(iter(sorted(runs.glob("*/run.json"))))
    return {"run_id": path.parent.name, **json.loads(path.read_text())}


def prefect_state(api: str, flow_run_id: str) -> str:
    from prefect.client.orchestration import SyncPrefectClient

    with SyncPrefectClient(api=api) as client:
        state = client.read_flow_run(UUID(flow_run_id)).state
    assert state is not None
    return str(state.name)


def mlflow_statuses(runs: Path) -> dict[str, str]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{runs / 'mlflow.db'}")
    experiments = [found.experiment_id for found in client.search_experiments()]
    return {
        run.data.tags["dspark.key"].partition(":")[2] or "parent": run.info.status
        for run in client.search_runs(experiments)
    }


def worked(tmp_path: Path) -> list[str]:
    path = tmp_path / "trace"
    return path.read_text().split() if path.exists() else []


def hanging(runs: Path) -> int:
    """Process id of the child that the hanging stage started."""
    entry = until(lambda: next(iter(runs.glob("*/services/hanging.json")), None))
    return int(json.loads(entry.read_text())["pid"])


def test_a_failed_run_is_resumed_from_the_failed_stage(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]], api: str
) -> None:
    runs = tmp_path / "runs"
    process = start("run", "-p", "laptop", "--set", "train.epochs=2", STUB_FAIL="train")
    output, _ = process.communicate()
    assert process.returncode == 1, output
    assert "the stub was asked to fail" in output
    assert "to do: unset STUB_FAIL" in output
    assert "Traceback" not in output + (next(runs.glob("*/logs/flow.log"))).read_text()
    facts = facts_of(runs)
    assert prefect_state(api, facts["flow_run_id"]) == "Failed"
    assert mlflow_statuses(runs)["train"] == mlflow_statuses(runs)["parent"] == "FAILED"
    first = json.loads((runs / facts["run_id"] / "summary.json").read_text())
    assert (first["status"], first["stages"][3]["status"]) == ("failed", "failed")

    process = start("resume", facts["run_id"])
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert worked(tmp_path) == ["validate", "serve", "stream", "train", "train", "evaluate", "publish"]
    assert set(mlflow_statuses(runs).values()) == {"FINISHED"}
    assert facts_of(runs)["mlflow_parent_run_id"] == facts["mlflow_parent_run_id"]
    summary = json.loads((runs / facts["run_id"] / "summary.json").read_text())
    assert [stage["status"] for stage in summary["stages"]] == ["reused"] * 3 + ["completed"] * 3

    process = start("resume", facts["run_id"], "--from", "evaluate", STUB_HOLD="1")
    output, _ = process.communicate()
    assert process.returncode == 1, output
    assert worked(tmp_path)[-2:] == ["evaluate", "publish"]
    assert prefect_state(api, facts_of(runs)["flow_run_id"]) == "Held"


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["SIGTERM", "Ctrl-C"]
)
def test_an_interrupted_run_is_cancelled_everywhere(
    tmp_path: Path,
    start: Callable[..., subprocess.Popen[str]],
    api: str,
    number: signal.Signals,
    code: int,
) -> None:
    runs = tmp_path / "runs"
    process = start("run", "-p", "laptop", STUB_HANG="train")
    child = hanging(runs)
    until(lambda: "train" in mlflow_statuses(runs))
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == code, output
    assert "Traceback" not in output
    assert not psutil.pid_exists(child)
    facts = facts_of(runs)
    assert prefect_state(api, facts["flow_run_id"]) == "Cancelled"
    statuses = mlflow_statuses(runs)
    assert statuses["train"] == statuses["parent"] == "KILLED"
    assert json.loads((runs / facts["run_id"] / "summary.json").read_text())["status"] == "cancelled"


def test_a_killed_run_leaves_nothing_and_is_closed_at_the_next_start(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]], api: str
) -> None:
    runs = tmp_path / "runs"
    process = start("run", "-p", "laptop", STUB_HANG="stream")
    child = hanging(runs)
    until(lambda: "stream" in mlflow_statuses(runs))
    process.kill()
    process.wait()
    until(lambda: not psutil.pid_exists(child), wait_s=15)
    facts = facts_of(runs)
    assert prefect_state(api, facts["flow_run_id"]) == "Running"

    process = start("clean", "--keep", "5")
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert prefect_state(api, facts["flow_run_id"]) == "Crashed"
    statuses = mlflow_statuses(runs)
    assert statuses["stream"] == statuses["parent"] == "KILLED"
    assert (runs / facts["run_id"] / "summary.json").exists()


def test_an_unexpected_error_is_one_line_and_the_path_of_the_traceback(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    process = start("run", "-p", "laptop", STUB_CRASH="serve")
    output, _ = process.communicate()
    assert process.returncode == 1, output
    assert "ZeroDivisionError: a fault of our own" in output
    assert "Traceback" not in output
    assert "Traceback" in next((tmp_path / "runs").glob("*/logs/flow.log")).read_text()
