"""The real small flow through a Prefect server and worker: completed, retried, cancelled, killed."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from observing import (
    busy_ports,
    facts_of,
    final_state,
    is_alive,
    mlflow_runs,
    prefect_state,
    registered,
    run_of,
    statuses,
    until,
)
from prefect_pages import Pages, served, working

pytestmark = [pytest.mark.verify("prefect"), pytest.mark.timeout(2400)]
NAME = "retrain-dspark"
LIMIT_S = 15.0
SMALL: dict[str, Any] = {
    "prompts": {"train_per_domain": 6, "evaluate_per_domain": 2},
    "stream": {"max_new_tokens": 28},
    "train": {"epochs": 2},
    "evaluate": {"replay_max_new_tokens": 24, "live": {"per_domain": 1, "max_new_tokens": 16}},
}


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    """`retrain-dspark ui` in a copy of the checkout, both deployments, and a worker."""
    with served(tmp_path_factory.mktemp("checkout"), small_stages=False) as pages, working(pages) as found:
        yield found


@pytest.fixture(scope="module")
def finished(worker: Pages) -> tuple[str, Path]:
    """Flow run and folder of one whole run."""
    flow_run_id = started(worker, {})
    state = until(lambda: final_state(worker.api, flow_run_id), 1500, "the end of the flow run")
    run = run_of(worker.root, flow_run_id)
    assert run is not None, state
    return flow_run_id, run


def started(pages: Pages, more: dict[str, Any], *words: str) -> str:
    """Exactly `prefect deployment run retrain-dspark`, with the small run's overrides."""
    overrides = json.dumps({**SMALL, **more})
    done = pages.call("prefect", "deployment", "run", NAME, "-p", f"overrides={overrides}", *words)
    match = re.search(r"UUID: ([0-9a-f-]{36})", done.stdout)
    assert done.returncode == 0 and match is not None, done.stdout
    return match.group(1)


def resumed(pages: Pages, run: Path, stage: str) -> str:
    """The finished run again from `stage`, as the form of the UI can ask for it."""
    return started(pages, {}, "-p", f"run_id={run.name}", "-p", f"from_stage={stage}")


def at_work(pages: Pages, flow_run_id: str, service: str) -> tuple[Path, list[psutil.Process], set[int]]:
    """Folder, processes and ports of a flow run once `service` runs."""
    run: Path = until(lambda: run_of(pages.root, flow_run_id), 300, "the run folder")
    until(lambda: service in registered(run), 600, service)
    entries = registered(run).values()
    owner = psutil.Process(int(facts_of(run)["owner"].split(" ")[2]))
    ports = {int(port) for entry in entries for port in entry["ports"]}
    return run, [owner, *owner.children(recursive=True)], ports


def wait_until_gone(processes: list[psutil.Process], run: Path, ports: set[int]) -> float:
    """Seconds until no process and no busy port is left."""
    began = time.monotonic()

    def gone() -> bool:
        running = [process for process in processes if is_alive(process)]
        return not running and not busy_ports(run, ports)

    until(gone, 60, "the end of all processes")
    return time.monotonic() - began


def test_the_deployment_runs_the_whole_flow(worker: Pages, finished: tuple[str, Path]) -> None:
    """`prefect deployment run retrain-dspark` runs all stages for real and publishes or holds"""
    flow_run_id, run = finished
    name, message = prefect_state(worker.api, flow_run_id)
    assert name in ("Completed", "Held"), message
    summary = json.loads((run / "summary.json").read_text())
    assert [stage["status"] for stage in summary["stages"]] == ["completed"] * 6
    assert summary["evaluation"]["lossless"] == "identical"
    assert set(statuses(mlflow_runs(worker.root, run.name)).values()) == {"FINISHED"}
    artifacts = httpx.post(f"{worker.api}/artifacts/filter", json={"limit": 200}, timeout=30).json()
    assert any(artifact["flow_run_id"] == flow_run_id for artifact in artifacts)


def test_the_pages_answer(worker: Pages, finished: tuple[str, Path]) -> None:
    """Prefect's page, its form's schema, and MLflow's page answer on loopback"""
    server = worker.api.removesuffix("/api")
    assert "<html" in httpx.get(f"{server}/dashboard", timeout=30, follow_redirects=True).text.lower()
    assert httpx.get(f"{server}/runs/flow-run/{finished[0]}", timeout=30).status_code == 200
    assert "<html" in httpx.get(worker.mlflow, timeout=30).text.lower()


def test_a_failed_run_is_retried(worker: Pages, finished: tuple[str, Path]) -> None:
    """`prefect flow-run retry` of a failed run reuses its stages and keeps its MLflow runs"""
    flow_run_id = resumed(worker, finished[1], "train")
    run, _, _ = at_work(worker, flow_run_id, "trainer")
    trainer = int(registered(run)["trainer"]["pid"])
    os.kill(trainer, signal.SIGKILL)
    assert until(lambda: final_state(worker.api, flow_run_id), 120, "the failure")[0] == "Failed"
    before = mlflow_runs(worker.root, run.name)
    assert statuses(before)["train"] == "FAILED"
    done = worker.call("prefect", "flow-run", "retry", flow_run_id)
    assert done.returncode == 0, done.stdout
    until(
        lambda: (final_state(worker.api, flow_run_id) or ("",))[0] in ("Completed", "Held"), 900, "the retry"
    )
    after = mlflow_runs(worker.root, run.name)
    assert {name: entry[1] for name, entry in after.items()} == {n: e[1] for n, e in before.items()}
    assert set(statuses(after).values()) == {"FINISHED"}
    stages = json.loads((run / "summary.json").read_text())["stages"]
    assert [stage["status"] for stage in stages] == ["reused"] * 3 + ["completed"] * 3


@pytest.mark.parametrize(("stage", "service"), [("serve", "target"), ("train", "trainer")])
def test_a_run_is_cancelled(
    worker: Pages, finished: tuple[str, Path], stage: str, service: str, record_property: Any
) -> None:
    """Cancelled from the API while a stage works"""
    flow_run_id = resumed(worker, finished[1], stage)
    run, processes, ports = at_work(worker, flow_run_id, service)
    done = worker.call("prefect", "flow-run", "cancel", flow_run_id)
    assert done.returncode == 0, done.stdout
    seconds = wait_until_gone(processes, run, ports)
    record_property("gone_after_s", round(seconds, 1))
    assert until(lambda: final_state(worker.api, flow_run_id), 60, "the state")[0] == "Cancelled"
    until(lambda: "ended_at" in facts_of(run), 60, "the closed folder")
    found = statuses(mlflow_runs(worker.root, run.name))
    assert found["parent"] == found[stage] == "KILLED"
    assert seconds <= LIMIT_S


@pytest.mark.parametrize(("stage", "service"), [("serve", "target"), ("train", "trainer")])
def test_a_flow_process_is_killed(
    worker: Pages, finished: tuple[str, Path], stage: str, service: str, record_property: Any
) -> None:
    """The flow's process is killed under its worker"""
    flow_run_id = resumed(worker, finished[1], stage)
    run, processes, ports = at_work(worker, flow_run_id, service)
    processes[0].kill()
    seconds = wait_until_gone(processes, run, ports)
    record_property("gone_after_s", round(seconds, 1))
    assert until(lambda: final_state(worker.api, flow_run_id), 60, "the state")[0] == "Crashed"
    until(lambda: "ended_at" in facts_of(run), 60, "the closed folder")
    assert registered(run) == {}
    found = statuses(mlflow_runs(worker.root, run.name))
    assert found["parent"] == found[stage] == "KILLED"
    assert seconds <= LIMIT_S
