"""What a dead run left is closed at the next start; what cannot be told to Prefect yet waits."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

import flows.hooks as hooks
import flows.repairing as repairing
from profiles.load import load_profile
from tasks.processes.identity import boot_id, host_name
from tasks.run_folder import RunFolder, create_run
from tasks.tracking import owner_tag


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Folders that were closed, with the status; MLflow has nothing."""
    found: list[tuple[str, str]] = []

    def close(run: RunFolder, status: str) -> None:
        found.append((run.run_id, status))
        run.remember(ended_at="now")

    monkeypatch.setattr(repairing, "close_folder", close)
    monkeypatch.setattr(hooks, "close_folder", close)
    return found


@pytest.fixture
def crashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Flow runs that were marked as crashed."""
    found: list[str] = []

    def crash(flow_run_id: str) -> list[str]:
        found.append(flow_run_id)
        return [f"flow run {flow_run_id}: marked as crashed"]

    monkeypatch.setattr(repairing, "_crash_flow_run", crash)
    return found


def dead_owner() -> str:
    """A process of this host that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return f"{host_name()} {boot_id()} {process.pid} 1"


def run(root: Path, name: str, owner: str, **facts: Any) -> RunFolder:
    folder = create_run(root, name, load_profile("laptop").profile)
    folder.remember(owner=owner, flow_run_id=f"flow-of-{name}", flow_run_ids=[f"flow-of-{name}"], **facts)
    return folder


def test_only_what_a_dead_process_left_open_is_repaired(
    tmp_path: Path, closed: list[tuple[str, str]], crashed: list[str]
) -> None:
    run(tmp_path, "dead", dead_owner())
    run(tmp_path, "live", owner_tag())
    run(tmp_path, "closed", dead_owner(), ended_at="then")
    run(tmp_path, "elsewhere", "another-host boot 1 1")
    lines = repairing.repair(tmp_path)
    assert closed == [("dead", "cancelled")]
    assert crashed == ["flow-of-dead"]
    assert lines == ["dead: its process had ended", "flow run flow-of-dead: marked as crashed"]
    assert repairing.repair(tmp_path) == []


def test_a_dry_run_changes_nothing(tmp_path: Path, closed: list[tuple[str, str]], crashed: list[str]) -> None:
    run(tmp_path, "dead", dead_owner())
    assert repairing.repair(tmp_path, change=False) == ["dead: its process had ended"]
    assert closed == [] and crashed == []


def test_the_callers_own_flow_run_is_never_crashed(
    tmp_path: Path, closed: list[tuple[str, str]], crashed: list[str]
) -> None:
    """`prefect flow-run retry` of a killed run works under the same id."""
    run(tmp_path, "dead", dead_owner())
    repairing.repair(tmp_path, own_flow_run="flow-of-dead")
    assert crashed == []
    assert closed == [("dead", "cancelled")]


def test_a_run_stays_open_until_prefect_was_told(
    tmp_path: Path, closed: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path, "dead", dead_owner())

    def unreachable(flow_run_id: str) -> list[str]:
        raise ConnectionError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(repairing, "_crash_flow_run", unreachable)
        repairing.repair(tmp_path)
    assert closed == []
    monkeypatch.setattr(repairing, "_crash_flow_run", lambda flow_run_id: [])
    repairing.repair(tmp_path)
    assert closed == [("dead", "cancelled")]


class State:
    """A state as Prefect hands it to a hook."""

    def __init__(self, name: str) -> None:
        self._name = name

    def is_cancelled(self) -> bool:
        return self._name == "cancelled"

    def is_cancelling(self) -> bool:
        return self._name == "cancelling"

    def is_crashed(self) -> bool:
        return self._name == "crashed"


class FlowRun:
    def __init__(self, id: str) -> None:
        self.id = id


@pytest.mark.parametrize(
    ("state", "mlflow", "folder"),
    [
        ("cancelled", "KILLED", "cancelled"),
        ("crashed", "KILLED", "cancelled"),
        ("failed", "FAILED", "failed"),
    ],
)
def test_the_hook_closes_the_folder_of_its_flow_run(
    tmp_path: Path,
    closed: list[tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    state: str,
    mlflow: str,
    folder: str,
) -> None:
    monkeypatch.setenv("RETRAIN_DSPARK_RUNS", str(tmp_path))
    run(tmp_path, "one", dead_owner())
    run(tmp_path, "two", dead_owner())
    ended: list[tuple[str, str]] = []
    monkeypatch.setattr(hooks, "close_runs", lambda root, run_id, status: ended.append((run_id, status)))
    hooks.close_run(flow=None, flow_run=FlowRun("flow-of-one"), state=State(state))
    assert ended == [("one", mlflow)]
    assert closed == [("one", folder)]


def test_the_hook_closes_the_folder_although_mlflow_does_not_answer(
    tmp_path: Path, closed: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETRAIN_DSPARK_RUNS", str(tmp_path))
    run(tmp_path, "one", dead_owner())

    def unreachable(root: Path, run_id: str, status: str) -> list[str]:
        raise ConnectionError("no answer")

    monkeypatch.setattr(hooks, "close_runs", unreachable)
    hooks.close_run(flow=None, flow_run=FlowRun("flow-of-one"), state=State("crashed"))
    assert closed == [("one", "cancelled")]


def test_a_flow_run_without_a_folder_is_left_alone(
    tmp_path: Path, closed: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETRAIN_DSPARK_RUNS", str(tmp_path))
    hooks.close_run(flow=None, flow_run=FlowRun("unknown"), state=State("crashed"))
    assert closed == []
