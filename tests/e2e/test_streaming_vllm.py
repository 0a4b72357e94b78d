"""`kill -9` of the real target's engine, of the store's master, of the capture client and of the trainer."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from observing import only_run, processes_of, registered, until
from prefect_pages import interrupt

from tasks.run_folder import RUNS_ENV
from tasks.stream.log import HiddenStateLog, read_index

pytestmark = [pytest.mark.verify("streaming_vllm"), pytest.mark.timeout(3600)]
PROGRAM = Path(sys.executable).parent / "retrain-dspark"
SMALL = (
    "prompts.train_per_domain=6",
    "prompts.evaluate_per_domain=2",
    "stream.max_new_tokens=28",
    "stream.concurrency=8",
    "train.epochs=3",
    "train.checkpoint_every_s=2",
    "evaluate.replay_max_new_tokens=24",
    "evaluate.live.per_domain=1",
    "evaluate.live.max_new_tokens=16",
)
ENTRIES = {"target": "target", "master": "store-master", "client": "capture", "trainer": "trainer"}
"""Victim -> name in the run's registry of processes."""
WAIT_S = 1500.0


def start(root: Path, *words: str) -> tuple[subprocess.Popen[bytes], Path]:
    foreign = ("PREFECT_", "MLFLOW_", "RETRAIN_DSPARK_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    output = root / f"output-{time.monotonic_ns()}.txt"
    with output.open("wb") as stream:
        process = subprocess.Popen(
            (str(PROGRAM), *words),
            cwd=root,
            env={**environment, RUNS_ENV: str(root)},
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return process, output


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def victim_process(run: Path, victim: str) -> psutil.Process:
    """The process to kill; of the target it is the engine, behind the server that answers."""
    leader = psutil.Process(int(registered(run)[ENTRIES[victim]]["pid"]))
    engines = [child for child in leader.children(recursive=True) if "EngineCore" in child.name()]
    return engines[0] if victim == "target" and engines else leader


def wait_for_moment(root: Path, victim: str, process: subprocess.Popen[bytes]) -> Path:
    """Wait until a random share of the captures, or of the training steps, is done."""
    share = random.Random(f"vllm {victim}").uniform(0.1, 0.9)

    def reached() -> bool:
        assert process.poll() is None, "the run ended before it could be disturbed"
        if not list(root.glob("*/profile.json")):
            return False
        run = only_run(root)
        if victim == "trainer":
            return bool(list((run / "04-train" / "checkpoints").glob("step-*")))
        prompts = lines(run / "03-stream" / "work" / "prompts.jsonl")
        return prompts > 0 and lines(run / "03-stream" / "log" / "index.jsonl") >= share * prompts

    until(reached, WAIT_S, f"the moment to kill the {victim}", 0.02)
    return only_run(root)


@pytest.mark.parametrize("victim", ENTRIES)
def test_killed_part_of_a_real_run(victim: str, tmp_path: Path, record_property: Any) -> None:
    """A part of a real run is killed; the run stops, and its resume captures only what is missing"""
    words = [word for assignment in SMALL for word in ("--set", assignment)]
    process, output = start(tmp_path, "run", "-p", "laptop", *words)
    try:
        run = wait_for_moment(tmp_path, victim, process)
        os.kill(victim_process(run, victim).pid, signal.SIGKILL)
        code = process.wait(300)
    finally:
        interrupt(process)
    assert code not in (0, 130), output.read_text()
    assert "Traceback" not in output.read_text()
    assert not processes_of(tmp_path) and not registered(run)
    before = read_index(run / "03-stream" / "log")
    record_property("captured_before", len(before))

    process, output = start(tmp_path, "resume", run.name)
    try:
        code = process.wait(WAIT_S)
    finally:
        interrupt(process)
    assert code in (0, 1), output.read_text()
    _captured_once(run, before)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] in ("completed", "held") and summary["capture"]["lost"] == 0
    states = {stage["name"]: stage["status"] for stage in summary["stages"]}
    assert states["stream"] == ("reused" if victim == "trainer" else "completed")
    assert not processes_of(tmp_path)


def _captured_once(run: Path, before: list[Any]) -> None:
    log = HiddenStateLog(run / "03-stream" / "log")
    entries = log.entries()
    dropped = lines(run / "03-stream" / "dropped.jsonl") + lines(run / "03-stream" / "set_aside.jsonl")
    assert len(entries) + dropped == lines(run / "03-stream" / "work" / "prompts.jsonl")
    assert len({entry.i for entry in entries}) == len({entry.prompt_id for entry in entries}) == len(entries)
    assert entries[: len(before)] == before
    for entry in entries:
        log.load(entry)
