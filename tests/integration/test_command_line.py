"""The command line around small stages: endings, statuses in Prefect and MLflow, and nothing left running."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import pytest
from observing import facts_of, mlflow_runs, only_run, prefect_state, processes_of, statuses, until

from tasks.stages import STAGE_NAMES

STUB = Path(__file__).parents[1] / "fakes" / "stubbed_cli.py"
pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def api(pages: Any) -> str:
    """Address of the session's Prefect API."""
    return str(pages.api)


@pytest.fixture
def start(tmp_path: Path, api: str) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def run(*words: str, shared_api: bool = True, **env: str) -> subprocess.Popen[str]:
        given = {
            **({"PREFECT_API_URL": api} if shared_api else {}),
            "RETRAIN_DSPARK_RUNS": str(tmp_path / "runs"),
            "STUB_TRACE": str(tmp_path / "trace"),
        }
        inherited = {n: v for n, v in os.environ.items() if not n.startswith(("PREFECT_", "MLFLOW_"))}
        process = subprocess.Popen(
            (sys.executable, str(STUB), *words),
            env={**inherited, **given, **env},
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


def facts(root: Path) -> dict[str, Any]:
    run = only_run(root)
    return {"run_id": run.name, **facts_of(run)}


def mlflow_statuses(root: Path) -> dict[str, str]:
    return statuses(mlflow_runs(root, only_run(root).name))


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
    known = facts(runs)
    assert prefect_state(api, known["flow_run_id"])[0] == "Failed"
    assert mlflow_statuses(runs)["train"] == mlflow_statuses(runs)["parent"] == "FAILED"
    first = json.loads((runs / known["run_id"] / "summary.json").read_text())
    assert (first["status"], first["stages"][3]["status"]) == ("failed", "failed")

    process = start("resume", known["run_id"])
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert worked(tmp_path) == ["validate", "serve", "stream", "train", "train", "evaluate", "publish"]
    assert set(mlflow_statuses(runs).values()) == {"FINISHED"}
    assert facts(runs)["mlflow_parent_run_id"] == known["mlflow_parent_run_id"]
    summary = json.loads((runs / known["run_id"] / "summary.json").read_text())
    assert [stage["status"] for stage in summary["stages"]] == ["reused"] * 3 + ["completed"] * 3

    process = start("resume", known["run_id"], "--from", "evaluate", STUB_HOLD="1")
    output, _ = process.communicate()
    assert process.returncode == 1, output
    assert worked(tmp_path)[-2:] == ["evaluate", "publish"]
    assert prefect_state(api, facts(runs)["flow_run_id"])[0] == "Held"


def test_a_run_stops_at_its_budget_and_goes_on_with_a_larger_one(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]], api: str
) -> None:
    runs = tmp_path / "runs"
    limit = ("--set", "budget.node_hours=0.002")
    process = start("run", "-p", "laptop", *limit, STUB_HANG="train")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 75, output
    assert "the run has used its budget" in output and "Traceback" not in output
    known = facts(runs)
    assert prefect_state(api, known["flow_run_id"])[0] == "Failed"
    assert known["error"]["kind"] == "BudgetSpent"
    assert not list((runs / known["run_id"] / "services").glob("*.json")), "a process was left"
    before = json.loads((runs / known["run_id"] / "held.json").read_text())["node_hours"]
    assert before >= 0.002
    done = worked(tmp_path)

    process = start("resume", known["run_id"], "--set", "budget.node_hours=10")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    summary = json.loads((runs / known["run_id"] / "summary.json").read_text())
    reused = [stage["name"] for stage in summary["stages"] if stage["status"] == "reused"]
    assert worked(tmp_path)[len(done) :] == list(STAGE_NAMES[len(reused) :])
    assert json.loads((runs / known["run_id"] / "held.json").read_text())["node_hours"] > before


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
    known = facts(runs)
    assert prefect_state(api, known["flow_run_id"])[0] == "Cancelled"
    statuses = mlflow_statuses(runs)
    assert statuses["train"] == statuses["parent"] == "KILLED"
    assert json.loads((runs / known["run_id"] / "summary.json").read_text())["status"] == "cancelled"


def killed(process: subprocess.Popen[str], runs: Path, stage: str) -> str:
    """Kill the flow while `stage` hangs, and wait until its child is gone; returns the flow run's id."""
    child = hanging(runs)
    until(lambda: stage in mlflow_statuses(runs))
    process.kill()
    process.wait()
    until(lambda: not psutil.pid_exists(child), wait_s=15)
    return str(facts(runs)["flow_run_id"])


def test_a_killed_run_leaves_nothing_and_is_closed_by_clean(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]], api: str
) -> None:
    runs = tmp_path / "runs"
    flow_run_id = killed(start("run", "-p", "laptop", STUB_HANG="stream"), runs, "stream")
    assert prefect_state(api, flow_run_id)[0] == "Running"
    assert mlflow_statuses(runs)["parent"] == "RUNNING"

    process = start("clean", "--keep", "5", "--dry-run")
    output, _ = process.communicate()
    assert "would repair" in output
    assert prefect_state(api, flow_run_id)[0] == "Running"

    process = start("clean", "--keep", "5")
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert prefect_state(api, flow_run_id)[0] == "Crashed"
    found = mlflow_statuses(runs)
    assert found["stream"] == found["parent"] == "KILLED"
    assert (only_run(runs) / "summary.json").exists()


def test_the_resume_of_a_killed_run_closes_what_the_killed_attempt_left(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]], api: str
) -> None:
    runs = tmp_path / "runs"
    first = killed(start("run", "-p", "laptop", STUB_HANG="train"), runs, "train")
    process = start("resume", only_run(runs).name)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    known = facts(runs)
    assert known["flow_run_ids"][0] == first != known["flow_run_id"]
    assert prefect_state(api, first)[0] == "Crashed"
    assert prefect_state(api, known["flow_run_id"])[0] == "Completed"
    assert set(mlflow_statuses(runs).values()) == {"FINISHED"}
    assert known["status"] == "completed"


def flow_runs_in(runs: Path) -> list[tuple[str, str]]:
    """Id and state of every flow run in the database of the run root."""
    with sqlite3.connect(runs / ".prefect" / "prefect.db") as database:
        found = database.execute("select id, state_name from flow_run").fetchall()
    return [(str(UUID(name)), state) for name, state in found]


def test_ctrl_c_ends_a_run_with_its_own_server(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """The process does not wait for its server, which has ended by then."""
    runs = tmp_path / "runs"
    process = start("run", "-p", "laptop", shared_api=False, STUB_HANG="train")
    hanging(runs)
    until(lambda: "train" in mlflow_statuses(runs))
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    until(lambda: not processes_of(runs), wait_s=15, what="the end of the server and the guard")
    assert flow_runs_in(runs) == [(facts(runs)["flow_run_id"], "Cancelled")]


def test_a_run_killed_with_its_own_server_is_crashed_in_the_same_database(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """Without PREFECT_API_URL the API dies with the run; `clean` finds the flow run in the run root."""
    runs = tmp_path / "runs"
    process = start("run", "-p", "laptop", shared_api=False, STUB_HANG="serve")
    flow_run_id = killed(process, runs, "serve")
    until(lambda: not processes_of(runs), wait_s=15, what="the end of the server and the guard")
    process = start("clean", "--keep", "5", shared_api=False)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    until(lambda: not processes_of(runs), wait_s=15, what="the end of all processes")
    assert flow_runs_in(runs) == [(flow_run_id, "Crashed")]
    assert mlflow_statuses(runs)["parent"] == "KILLED"


def test_an_unexpected_error_is_one_line_and_the_path_of_the_traceback(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    process = start("run", "-p", "laptop", STUB_CRASH="serve")
    output, _ = process.communicate()
    assert process.returncode == 1, output
    assert "ZeroDivisionError: a fault of our own" in output
    assert "Traceback" not in output
    assert "Traceback" in next((tmp_path / "runs").glob("*/logs/flow.log")).read_text()


def test_logs_are_followed_until_the_run_ends(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """`logs RUN -f` shows what was written, then what is written, and ends with the run."""
    runs = tmp_path / "runs"
    process = start("run", "-p", "laptop", STUB_HANG="train")
    hanging(runs)
    run_id = str(facts(runs)["run_id"])
    following = start("logs", run_id, "-f", "-n", "1000")
    shown = []
    while "train: runs" not in "".join(shown):
        line = following.stdout.readline() if following.stdout else ""
        assert line, "".join(shown)
        shown.append(line)
    assert following.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    rest, _ = following.communicate(timeout=60)
    assert following.returncode == 0
    assert len(rest) + len("".join(shown)) >= len((runs / run_id / "logs" / "flow.log").read_text())
    assert "==> flow.log <==" in "".join(shown)


def test_records_go_to_an_mlflow_server(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]], pages: Any
) -> None:
    """MLFLOW_TRACKING_URI over HTTP: runs, parameters and files are on the server, and no database here."""
    from mlflow import MlflowClient

    runs = tmp_path / "runs"
    output, _ = start("run", "-p", "laptop", MLFLOW_TRACKING_URI=pages.mlflow).communicate()
    assert f"MLflow    {pages.mlflow}" in output
    assert not (runs / "mlflow.db").exists()
    client = MlflowClient(tracking_uri=pages.mlflow)
    known = facts(runs)
    parent = client.get_run(known["mlflow_parent_run_id"])
    assert parent.info.status == "FINISHED" and parent.data.params
    children = client.search_runs(
        [parent.info.experiment_id], f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'"
    )
    assert {child.data.tags["dspark.key"].partition(":")[2] for child in children} == set(STAGE_NAMES)
    assert {child.info.status for child in children} == {"FINISHED"}
    assert "report.html" in {file.path for file in client.list_artifacts(parent.info.run_id)}
