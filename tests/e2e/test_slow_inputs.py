"""Surroundings that go wrong or are unusual, by the real command line: `make verify PART=inputs`."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pytest
from observing import facts_of, mlflow_runs, only_run, processes_of, statuses, until

from tasks.processes.ports import free_port
from tasks.stages import STAGE_NAMES

pytestmark = [pytest.mark.verify("inputs"), pytest.mark.timeout(900)]
ROOT = Path(__file__).resolve().parents[2]
STUB = (sys.executable, str(ROOT / "tests" / "fakes" / "stubbed_cli.py"))
REAL = (str(Path(sys.executable).parent / "retrain-dspark"),)
SCREEN_LINES = 24
ENDING_S = 300
Process = subprocess.Popen[str]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """`start(program, *words, **environment)`: in a folder of its own; killed at the end if it still runs."""
    started: list[Process] = []

    def begin(program: tuple[str, ...], *words: str, **env: str) -> Process:
        foreign = ("PREFECT_", "MLFLOW_", "RETRAIN_DSPARK_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        process = subprocess.Popen(
            (*program, *words),
            cwd=tmp_path,
            env={**kept, "RETRAIN_DSPARK_RUNS": str(tmp_path / "runs"), **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
            process.communicate()


def ended(process: Process, code: int) -> str:
    """Output of a process that has to end with this exit code and without a traceback."""
    output, _ = process.communicate(timeout=ENDING_S)
    assert process.returncode == code, output
    assert "Traceback" not in output
    return output


def summary_of(run: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    return summary


def nobody() -> str:
    """Address on which nobody listens."""
    return f"http://127.0.0.1:{free_port('127.0.0.1')}"


def test_mlflow_that_does_not_answer(
    tmp_path: Path, start: Callable[..., Process], record_property: Any
) -> None:
    """MLFLOW_TRACKING_URI is dead: the run completes, keeps its records, and the next resume sends them"""
    root = tmp_path / "runs"
    output = ended(start(STUB, "run", "-p", "laptop", MLFLOW_TRACKING_URI=nobody()), 0)
    run = only_run(root)
    assert summary_of(run)["status"] == "completed"
    assert "MLflow" in output and re.search("not answer|cannot be reached|did not take", output), output
    waiting = (run / "mlflow-spool.jsonl").read_text(encoding="utf-8").splitlines()
    record_property("records_kept", len(waiting))
    assert waiting and not (root / "mlflow.db").exists()

    ended(start(STUB, "resume", run.name), 0)
    assert not (run / "mlflow-spool.jsonl").exists()
    found = statuses(mlflow_runs(root, run.name))
    assert set(found) == {"parent", *STAGE_NAMES} and set(found.values()) == {"FINISHED"}


def test_prefect_that_does_not_answer(tmp_path: Path, start: Callable[..., Process]) -> None:
    """PREFECT_API_URL is dead: one screen says so and what to do, and no run is made"""
    url = f"{nobody()}/api"
    output = ended(start(STUB, "run", "-p", "laptop", PREFECT_API_URL=url), 1)
    assert url in output and "unset PREFECT_API_URL" in output
    assert len(output.splitlines()) <= SCREEN_LINES
    assert list((tmp_path / "runs").glob("*/run.json")) == []
    assert not processes_of(tmp_path / "runs")


def test_two_runs_at_once(tmp_path: Path, start: Callable[..., Process]) -> None:
    """Two runs in one run root at the same time: both complete, and nothing of one is in the other"""
    root, epochs = tmp_path / "runs", (2, 3)
    both = [start(STUB, "run", "-p", "laptop", "--set", f"train.epochs={number}") for number in epochs]
    outputs = [ended(process, 0) for process in both]
    runs = {json.loads(path.read_text())["train"]["epochs"]: path.parent for path in profiles_of(root)}
    assert set(runs) == set(epochs)
    for number, output in zip(epochs, outputs, strict=True):
        run, other = runs[number], runs[sum(epochs) - number]
        assert run.name in output and other.name not in output
        summary, facts = summary_of(run), facts_of(run)
        assert (summary["run_id"], summary["status"]) == (run.name, "completed")
        assert [stage["status"] for stage in summary["stages"]] == ["completed"] * 6
        assert summary["draft"]["epochs"] == number
        assert len(facts["flow_run_ids"]) == 1
        assert facts["flow_run_id"] != facts_of(other)["flow_run_id"]
        found = mlflow_runs(root, run.name)
        assert set(found) == {"parent", *STAGE_NAMES}
        assert set(statuses(found).values()) == {"FINISHED"}
        for path in (run / "logs").glob("*.log"):
            assert other.name not in path.read_text(encoding="utf-8", errors="replace")
    assert not processes_of(root)


def profiles_of(root: Path) -> list[Path]:
    return list(root.glob("*/profile.json"))


def test_run_root_with_spaces_and_letters_beyond_ascii(tmp_path: Path, start: Callable[..., Process]) -> None:
    """A run root like `mes données 数`: run, resume and logs work, and the printed addresses lead there"""
    root = tmp_path / "mes données 数"
    where = {"RETRAIN_DSPARK_RUNS": str(root)}
    output = ended(start(STUB, "run", "-p", "laptop", **where), 0)
    run = only_run(root)
    match = re.search(r"file://\S+", output)
    assert match is not None, output
    assert Path(unquote(urlparse(match.group()).path)) == run / "report.html"
    assert (run / "report.html").is_file()
    assert statuses(mlflow_runs(root, run.name))["parent"] == "FINISHED"
    ended(start(STUB, "resume", run.name, "--from", "evaluate", **where), 0)
    states = [stage["status"] for stage in summary_of(run)["stages"]]
    assert states == ["reused"] * 4 + ["completed"] * 2
    assert "train" in ended(start(REAL, "logs", run.name, **where), 0)
    ended(start(REAL, "clean", "--keep", "0", "--dry-run", **where), 0)
    assert run.is_dir()


@pytest.mark.parametrize("option", ["--prefect-port", "--mlflow-port"])
def test_port_of_a_page_is_taken(option: str, tmp_path: Path, start: Callable[..., Process]) -> None:
    """`retrain-dspark ui` on a port of another program names it and starts nothing"""
    ports = {"--prefect-port": free_port(), "--mlflow-port": free_port()}
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        ports[option] = other.getsockname()[1]
        words = [word for name, port in ports.items() for word in (name, str(port))]
        output = ended(start(REAL, "ui", *words), 2)
    assert option in output and f"port {ports[option]}" in output and f"pid {os.getpid()}" in output
    assert len(output.splitlines()) <= SCREEN_LINES
    assert not processes_of(tmp_path / "runs")


def cached() -> dict[str, float]:
    """What this user's own cache holds, with times of change."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return {str(path): path.stat().st_mtime for path in (base / "retrain-dspark").glob("targets/*")}


def test_cache_elsewhere(tmp_path: Path, start: Callable[..., Process]) -> None:
    """XDG_CACHE_HOME is elsewhere: the target is converted into it, and the usual cache is left alone"""
    before, cache = cached(), tmp_path / "andere Ablage"
    process = start(REAL, "run", "-p", "laptop", XDG_CACHE_HOME=str(cache))
    until(lambda: process.poll() is not None or targets_in(cache), ENDING_S, "the converted target")
    process.send_signal(signal.SIGINT)
    ended(process, 130)
    [target] = targets_in(cache)
    assert (target / "model.safetensors").stat().st_size > 2**20
    assert cached() == before
    until(lambda: not processes_of(tmp_path / "runs"), 15, "the end of everything")


def targets_in(cache: Path) -> list[Path]:
    """Targets that are complete."""
    found = (cache / "retrain-dspark" / "targets").glob("*/config.json")
    return [path.parent for path in found if not path.parent.name.startswith(".")]
