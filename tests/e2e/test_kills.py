"""The real flow, ended in every stage in every way: nothing of ours stays, and every record says so."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from observing import (
    busy_ports,
    facts_of,
    is_alive,
    mlflow_runs,
    only_run,
    prefect_state,
    processes_of,
    registered,
    statuses,
    until,
)
from prefect_pages import interrupt

from tasks.stages import STAGE_NAMES, stage_named

pytestmark = [pytest.mark.verify("kills"), pytest.mark.timeout(1800)]
PROGRAM = Path(sys.executable).parent / "retrain-dspark"
BASE_ENV = "RETRAIN_DSPARK_KILLS_RUN"
LIMIT_S = 15.0
SETTLED_S = 3.0
"""Age of a stage's process when it is killed: it has imported its libraries and holds ports and memory."""
SMALL = (
    "prompts.train_per_domain=6",
    "prompts.evaluate_per_domain=2",
    "stream.max_new_tokens=28",
    "train.epochs=2",
    "evaluate.replay_max_new_tokens=24",
    "evaluate.live.per_domain=1",
    "evaluate.live.max_new_tokens=16",
)
# A stage that starts processes is killed when one of these runs; the others as soon as they have begun.
PROCESSES = {
    "serve": ("target",),
    "stream": ("capture",),
    "train": ("trainer",),
    "evaluate": ("replay", "arm-plain", "arm-draft"),
}
CODES = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGKILL: -signal.SIGKILL}


@dataclass
class Series:
    """Where the killed runs live.

    Args:
        root: Their run root.
        base: A finished run that each of them starts from.
        api: Prefect's API that they all tell.
    """

    root: Path
    base: Path
    api: str

    def copy(self, name: str) -> Path:
        """The finished run under another name; captures are linked, as no stage changes a written sample."""
        run = self.root / name
        shutil.copytree(self.base, run, copy_function=_link_or_copy)
        (run / "run.json").unlink(missing_ok=True)
        return run

    def start(self, *words: str) -> tuple[subprocess.Popen[bytes], Path]:
        inherited = {n: v for n, v in os.environ.items() if not n.startswith(("PREFECT_", "MLFLOW_"))}
        env = {**inherited, "RETRAIN_DSPARK_RUNS": str(self.root), "PREFECT_API_URL": self.api}
        output = self.root / f"output-{time.monotonic_ns()}.txt"
        with open(output, "wb") as stream:
            process = subprocess.Popen(
                (str(PROGRAM), *words),
                cwd=self.root,
                env=env,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return process, output

    def call(self, *words: str) -> tuple[int, str]:
        process, output = self.start(*words)
        try:
            return process.wait(1200), output.read_text()
        finally:
            interrupt(process)


def _link_or_copy(source: str, target: str) -> None:
    if source.endswith(".safetensors"):
        os.link(source, target)
    else:
        shutil.copy2(source, target)


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Series]:
    """A finished small run, and one Prefect API for the whole series."""
    from flows.cli.prefect_server import prefect_api, wait_until_ready

    root = tmp_path_factory.mktemp("kills")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PREFECT_API_URL", raising=False)
        patch.setenv("PREFECT_HOME", str(tmp_path_factory.mktemp("prefect")))
        patch.setenv("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
        patch.setenv("RETRAIN_DSPARK_RUNS", str(tmp_path_factory.mktemp("server")))
        with prefect_api() as api:
            wait_until_ready(api)
            if given := os.environ.get(BASE_ENV):
                yield Series(root, Path(given), api)
                return
            first = root / "first"
            first.mkdir()
            words = [word for assignment in SMALL for word in ("--set", assignment)]
            code, output = Series(first, first, api).call("run", "-p", "laptop", *words)
            assert code in (0, 1), output
            yield Series(root, only_run(first), api)


def is_at_work(run: Path, stage: str) -> bool:
    """Whether the stage runs, with a process of its own if it starts any."""
    folder = run / stage_named(stage).folder_name
    if not (folder / ".started.json").exists() or (folder / "manifest.json").exists():
        return False
    if stage not in PROCESSES:
        return True
    entries = [entry for name, entry in registered(run).items() if name in PROCESSES[stage]]
    return any(_age_s(int(entry["pid"])) >= SETTLED_S for entry in entries)


def _age_s(pid: int) -> float:
    try:
        return time.time() - psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return 0.0


def everything_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The flow and all its descendants: the engine's processes hide their environment, so note them now."""
    flow = psutil.Process(process.pid)
    return [flow, *flow.children(recursive=True)]


def is_over(known: list[psutil.Process], run: Path, root: Path, ports: set[int]) -> bool:
    running = [process for process in known if is_alive(process)]
    return not running and not processes_of(root) and not busy_ports(run, ports)


@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
@pytest.mark.parametrize("stage", STAGE_NAMES)
def test_a_stage_that_is_killed(
    stage: str, number: signal.Signals, series: Series, record_property: Any
) -> None:
    """Killed in the middle of a stage"""
    run = series.copy(f"20200101-{stage}-{number.name.lower()}")
    process, output = series.start("resume", run.name, "--from", stage)
    try:
        until(lambda: is_at_work(run, stage) or process.poll() is not None, 500, f"stage {stage}")
        assert process.poll() is None, output.read_text()
        known = everything_of(process)
        ports = {int(port) for entry in registered(run).values() for port in entry["ports"]}
        killed = time.monotonic()
        process.send_signal(number)
        until(lambda: process.poll() is not None, 60, "the end of the command")
        until(lambda: is_over(known, run, series.root, ports), 60, "the end of everything")
        seconds = time.monotonic() - killed
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    record_property("gone_after_s", round(seconds, 1))
    assert process.returncode == CODES[number], output.read_text()
    assert "Traceback" not in output.read_text()
    flow_run_id = facts_of(run)["flow_run_id"]
    if number == signal.SIGKILL:
        code, text = series.call("clean", "--keep", "1000")
        assert code == 0, text
    wanted = "Crashed" if number == signal.SIGKILL else "Cancelled"
    assert prefect_state(series.api, flow_run_id)[0] == wanted
    found = statuses(mlflow_runs(series.root, run.name))
    assert found["parent"] == "KILLED"
    assert found.get(stage, "KILLED") == "KILLED"
    assert "RUNNING" not in found.values()
    assert json.loads((run / "summary.json").read_text())["status"] == "cancelled"
    assert registered(run) == {}
    assert seconds <= LIMIT_S


def test_a_killed_run_is_resumed_to_its_end(series: Series, record_property: Any) -> None:
    """A run that was killed while it trained is resumed and completes"""
    run = series.root / "20200101-train-sigkill"
    code, output = series.call("resume", run.name)
    assert code in (0, 1), output
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] in ("completed", "held")
    states = [stage["status"] for stage in summary["stages"]]
    record_property("stages", " ".join(states))
    assert states[:4] == ["reused"] * 3 + ["completed"]
    # A draft that came out bit for bit as before has been evaluated already; is it published here, too?
    assert set(states[4:]) <= {"completed", "reused"}
    assert set(statuses(mlflow_runs(series.root, run.name)).values()) == {"FINISHED"}
    assert not processes_of(series.root)
