"""`prefect deployment run retrain-dspark`: real server, pool, deployment and worker, with small stages."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from observing import (
    facts_of,
    final_state,
    flow_runs,
    mlflow_runs,
    prefect_state,
    registered,
    run_of,
    statuses,
    until,
)
from prefect_pages import working

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]
DEPLOYMENT = "retrain-dspark"


@pytest.fixture(scope="module")
def worker(pages: Any) -> Iterator[Any]:
    """The pages, with the deployments of `prefect.yaml` and a worker of their pool."""
    with working(pages) as found:
        yield found


@pytest.fixture(autouse=True)
def plain_stages(pages: Any) -> Iterator[None]:
    """Small stages that succeed, unless a test asks for something else."""
    ask(pages)
    yield
    ask(pages)


def ask(pages: Any, **settings: str) -> None:
    (pages.checkout / "stub.json").write_text(json.dumps(settings))


def started(pages: Any, *words: str) -> str:
    """Id of the flow run that exactly `prefect deployment run retrain-dspark` and `words` created."""
    done = pages.call("prefect", "deployment", "run", DEPLOYMENT, *words)
    assert done.returncode == 0, done.stdout
    match = re.search(r"UUID: ([0-9a-f-]{36})", done.stdout)
    assert match is not None, done.stdout
    return match.group(1)


def ended(pages: Any, flow_run_id: str, wait_s: float = 150) -> tuple[str, str]:
    """Name and message of the flow run's last state."""
    try:
        state: tuple[str, str] = until(
            lambda: final_state(pages.api, flow_run_id), wait_s, "the end of the flow run"
        )
    except AssertionError:
        print((pages.checkout / "worker.txt").read_text()[-4000:])
        raise
    return state


def hanging(pages: Any, flow_run_id: str, stage: str) -> tuple[Path, int]:
    """Folder of a run whose `stage` hangs, and the process that the stage started."""
    run: Path = until(lambda: run_of(pages.root, flow_run_id), what="the run folder")
    entry = until(lambda: registered(run).get("hanging"), what="the stage's process")
    until(lambda: stage in mlflow_runs(pages.root, run.name), what="the stage's MLflow run")
    return run, int(entry["pid"])


def properties(model: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return list(model.get("properties", {}).items())


def is_described(field: dict[str, Any], models: dict[str, Any]) -> bool:
    """Whether the field, or the part of the profile that it holds, says what it is."""
    parts = [field, *field.get("anyOf", [])]
    named = [models[part["$ref"].rpartition("/")[2]] for part in parts if "$ref" in part]
    return any(place.get("description") for place in (field, *named))


def test_the_deployment_shows_every_field_with_its_description(worker: Any) -> None:
    answer = httpx.get(f"{worker.api}/deployments/name/{DEPLOYMENT}/{DEPLOYMENT}", timeout=30).json()
    schema = answer["parameter_openapi_schema"]
    assert set(schema["properties"]) == {"profile", "overrides", "run_id", "from_stage"}
    assert all(field.get("description") for field in schema["properties"].values())
    assert '"laptop"' in json.dumps(schema["properties"]["profile"])
    models = schema["definitions"]
    fields = [(f"{name}.{field}", value) for name in models for field, value in properties(models[name])]
    assert len(fields) > 100
    assert [field for field, value in fields if not is_described(value, models)] == []
    nightly = httpx.get(f"{worker.api}/deployments/name/{DEPLOYMENT}/{DEPLOYMENT}-nightly", timeout=30)
    assert [schedule["active"] for schedule in nightly.json()["schedules"]] == [False]


@pytest.mark.parametrize(
    ("parameter", "wanted"),
    [
        ("profile=laptopp", "field 'profile'"),
        ('overrides={"train":{"epoks":2}}', "epoks"),
        ('overrides={"train":{"epochs":"many"}}', "many"),
        ('overrides={"train":{"epochs":-1}}', "-1"),
        ("profil=laptop", "profil"),
    ],
    ids=["profile", "field", "type", "range", "parameter"],
)
def test_a_mistake_is_refused_before_a_run_exists(worker: Any, parameter: str, wanted: str) -> None:
    before = flow_runs(worker.api)
    done = worker.call("prefect", "deployment", "run", DEPLOYMENT, "-p", parameter)
    assert done.returncode != 0
    assert wanted in done.stdout
    assert "Traceback" not in done.stdout
    assert flow_runs(worker.api) == before


def test_the_bare_name_runs_the_deployment(worker: Any) -> None:
    flow_run_id = started(worker)
    assert ended(worker, flow_run_id)[0] == "Completed"
    run = run_of(worker.root, flow_run_id)
    assert run is not None
    assert json.loads((run / "profile.json").read_text())["name"] == "laptop"
    assert json.loads((run / "summary.json").read_text())["status"] == "completed"
    assert set(statuses(mlflow_runs(worker.root, run.name)).values()) == {"FINISHED"}


def test_a_named_profile_and_inline_overrides_reach_the_run(worker: Any) -> None:
    overrides = 'overrides={"train":{"epochs":2}}'
    flow_run_id = started(worker, "-p", "profile=laptop", "-p", overrides)
    assert ended(worker, flow_run_id)[0] == "Completed"
    run = run_of(worker.root, flow_run_id)
    assert run is not None
    profile = json.loads((run / "profile.json").read_text())
    assert profile["train"]["epochs"] == 2
    assert profile["train"]["optimizer"] == "muon"
    assert facts_of(run)["overrides"] == {"train": {"epochs": 2}}


def test_fields_that_disagree_end_the_run_with_our_message(worker: Any) -> None:
    flow_run_id = started(worker, "-p", 'overrides={"stream":{"max_new_tokens":2000}}')
    name, message = ended(worker, flow_run_id)
    assert name == "Failed"
    assert "max_new_tokens" in message and "max_model_len" in message
    log = (worker.checkout / "worker.txt").read_text()
    lines = log[log.index(flow_run_id) :]
    assert "max_model_len" in lines
    assert "Traceback" not in lines


def test_a_failed_flow_run_is_retried_from_the_failed_stage(worker: Any) -> None:
    ask(worker, STUB_FAIL="train")
    flow_run_id = started(worker)
    name, message = ended(worker, flow_run_id)
    assert name == "Failed" and "the stub was asked to fail" in message
    run = run_of(worker.root, flow_run_id)
    assert run is not None
    before = mlflow_runs(worker.root, run.name)
    assert statuses(before)["train"] == statuses(before)["parent"] == "FAILED"

    ask(worker)
    trace = worker.checkout / "trace"
    trace.unlink()
    done = worker.call("prefect", "flow-run", "retry", flow_run_id)
    assert done.returncode == 0, done.stdout
    until(lambda: prefect_state(worker.api, flow_run_id)[0] == "Completed", 150, "the retry")
    assert trace.read_text().split() == ["train", "evaluate", "publish"]
    after = mlflow_runs(worker.root, run.name)
    assert {name: after[name][1] for name in before} == {name: entry[1] for name, entry in before.items()}
    assert set(statuses(after).values()) == {"FINISHED"}


def test_a_cancelled_flow_run_leaves_no_process(worker: Any) -> None:
    ask(worker, STUB_HANG="stream")
    flow_run_id = started(worker)
    run, child = hanging(worker, flow_run_id, "stream")
    done = worker.call("prefect", "flow-run", "cancel", flow_run_id)
    assert done.returncode == 0, done.stdout
    until(lambda: not psutil.pid_exists(child), 15, "the end of the stage's process")
    assert ended(worker, flow_run_id)[0] == "Cancelled"
    until(lambda: "ended_at" in facts_of(run), 30, "the closed folder")
    found = statuses(mlflow_runs(worker.root, run.name))
    assert found["stream"] == found["parent"] == "KILLED"
    assert registered(run) == {}


def test_a_killed_flow_run_is_crashed_and_its_processes_end(worker: Any) -> None:
    ask(worker, STUB_HANG="train")
    flow_run_id = started(worker)
    run, child = hanging(worker, flow_run_id, "train")
    owner = int(facts_of(run)["owner"].split(" ")[2])
    os.kill(owner, signal.SIGKILL)
    until(lambda: not psutil.pid_exists(child), 15, "the end of the stage's process")
    assert ended(worker, flow_run_id)[0] == "Crashed"
    until(lambda: "ended_at" in facts_of(run), 30, "the closed folder")
    found = statuses(mlflow_runs(worker.root, run.name))
    assert found["train"] == found["parent"] == "KILLED"
    assert registered(run) == {}
