"""The trainer under torchrun, as the pipeline starts it: exit code and errors are those of its ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from rank_runs import LONGEST_S, newest_step, rows

from tasks.errors import EXIT_FAILED, EXIT_RESUMABLE
from tasks.processes.child import ERROR_FILE_ENV
from tasks.train.core import trainer_spec
from tasks.train.settings import TrainSettings
from tests.unit.tasks.train.conftest import TinyWorld, one_thread, world

__all__ = ["one_thread", "world"]
pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def two_ranks(world: TinyWorld, folder: Path, **train: Any) -> TrainSettings:
    scale = {"ranks": 2, "strategy": train.pop("strategy", "ddp")}
    options = {"packs_per_step": 2, "checkpoint_every_s": 1e-3, "log_every_steps": 1, "scale": scale}
    return world.settings(folder, **options | train)


@contextmanager
def started(settings: TrainSettings) -> Iterator[psutil.Popen]:
    """The trainer's processes, ended on every way out."""
    log = settings.path.parent / "trainer.log"
    error = settings.path.parent / "error.json"
    error.unlink(missing_ok=True)
    with open(log, "ab") as output:
        process = psutil.Popen(
            trainer_spec(settings).argv,
            env={**os.environ, ERROR_FILE_ENV: str(error)},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    ranks = []
    try:
        yield process
        ranks = process.children(recursive=True) if process.is_running() else []
    finally:
        for one in [*ranks, process]:
            if one.is_running():
                one.kill()
        process.wait()


def wait_for_step(settings: TrainSettings, process: psutil.Popen, step: int) -> list[psutil.Process]:
    """Wait for a complete checkpoint; the ranks in order."""
    deadline = time.monotonic() + LONGEST_S
    while newest_step(settings.path) < step:
        assert process.poll() is None and time.monotonic() < deadline, log_of(settings)
        time.sleep(0.02)
    found = {child.environ().get("RANK"): child for child in process.children()}
    return [found["0"], found["1"]]


def log_of(settings: TrainSettings) -> str:
    return (settings.path.parent / "trainer.log").read_text()[-3000:]


def said(settings: TrainSettings) -> dict[str, Any]:
    row: dict[str, Any] = json.loads((settings.path.parent / "error.json").read_text(encoding="utf-8"))
    return row


def test_sigterm_is_resumable_and_the_next_start_ends_the_run(world: TinyWorld, tmp_path: Path) -> None:
    settings = two_ranks(world, tmp_path / "stage", epochs=6, strategy="fsdp")
    with started(settings) as process:
        wait_for_step(settings, process, 2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LONGEST_S) == EXIT_RESUMABLE, log_of(settings)
    reached = newest_step(settings.path)
    assert reached >= 2 and not (settings.path / "result.json").exists()
    with started(settings) as process:
        assert process.wait(LONGEST_S) == 0, log_of(settings)
    result = json.loads((settings.path / "result.json").read_text(encoding="utf-8"))
    steps = [row["step"] for row in rows(settings.path, "train")]
    assert steps == list(range(1, result["steps"] + 1)) and result["steps"] > reached


def test_killed_rank_is_named_and_leaves_the_checkpoint(world: TinyWorld, tmp_path: Path) -> None:
    settings = two_ranks(world, tmp_path / "stage", epochs=400)
    with started(settings) as process:
        follower = wait_for_step(settings, process, 2)[1]
        follower.kill()
        assert process.wait(LONGEST_S) == EXIT_FAILED
    assert said(settings)["what"] == "rank 1 of the trainer ended with signal SIGKILL"
    assert "last complete checkpoint" in said(settings)["hint"]
    assert newest_step(settings.path) >= 2
