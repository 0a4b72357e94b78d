"""Finite children: progress, errors of their own class, stalls, and silent deaths."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tasks.errors import JobError, ServiceError, StoreError, UsageError
from tasks.processes.job import run_job
from tasks.processes.launcher import LocalLauncher, ProcessSpec
from tasks.run_folder import RunFolder

Start = Callable[..., None]


class Seen:
    def __init__(self) -> None:
        self.rows: list[tuple[float, float | None, str, Mapping[str, float], str]] = []

    def update(
        self,
        *,
        done: float,
        total: float | None,
        unit: str,
        metrics: Mapping[str, float] = {},
        note: str = "",
    ) -> None:
        self.rows.append((done, total, unit, metrics, note))


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def start(run: RunFolder, tmp_path: Path, seen: Seen) -> Start:
    """Run `work(config)`'s body as a child under `run_job`."""

    def go(body: str, stall_timeout_s: float = 30.0, **more: Any) -> None:
        config = tmp_path / "config.json"
        config.write_text(json.dumps({"progress": str(tmp_path / "progress.jsonl")}))
        code = (
            "from tasks.processes.child import ProgressFile, child_main\n"
            "def work(config):\n"
            + "".join(f"    {line}\n" for line in body.splitlines())
            + "child_main(work)"
        )
        argv = (sys.executable, "-c", code, str(config))
        run_job(
            LocalLauncher(),
            ProcessSpec(name="job", stage="train", role="train", argv=argv),
            run,
            progress=seen,
            progress_file=tmp_path / "progress.jsonl",
            stall_timeout_s=stall_timeout_s,
            **more,
        )

    return go


def test_progress_reaches_the_parent(start: Start, seen: Seen, tmp_path: Path) -> None:
    (tmp_path / "progress.jsonl").write_text('{"done": "an earlier attempt"}\n')
    start(
        "file = ProgressFile(config['progress'])\n"
        "file.write(1, 2, 'steps', {'loss': 0.5})\nfile.write(2, 2, 'steps', note='end')"
    )
    assert seen.rows == [(1, 2, "steps", {"loss": 0.5}, ""), (2, 2, "steps", {}, "end")]


def test_error_of_the_child_keeps_class_and_words(start: Start, run: RunFolder) -> None:
    with pytest.raises(UsageError) as info:
        start(
            "from tasks.errors import UsageError\nraise UsageError('bad', where='train.lr', hint='lower it')"
        )
    assert (info.value.what, info.value.where, info.value.hint) == ("bad", "train.lr", "lower it")
    assert info.value.log_tail == ()
    with pytest.raises(StoreError):
        start("from tasks.errors import StoreError\nraise StoreError('lost')")


def test_unexpected_error_brings_the_log(start: Start) -> None:
    with pytest.raises(JobError, match="ZeroDivisionError") as info:
        start("1 / 0")
    assert any("ZeroDivisionError" in line for line in info.value.log_tail)


def test_death_without_words(start: Start) -> None:
    with pytest.raises(JobError, match="signal SIGKILL") as info:
        start("import os\nprint('last words', flush=True)\nos.kill(os.getpid(), 9)")
    assert "last words" in info.value.log_tail and "memory" in info.value.hint
    with pytest.raises(JobError, match="exit status 3"):
        start("import os\nos._exit(3)")


def test_stall_and_timeout(start: Start, run: RunFolder) -> None:
    with pytest.raises(JobError, match="no progress"):
        start("import time\ntime.sleep(600)", stall_timeout_s=0.3)
    with pytest.raises(JobError, match="did not end"):
        start("import time\ntime.sleep(600)", timeout_s=0.3)
    assert not list(run.services.glob("*.json"))


def test_what_the_watch_raises_ends_the_child(start: Start, run: RunFolder) -> None:
    def engine_hangs() -> None:
        raise ServiceError("engine not progressing")

    with pytest.raises(ServiceError, match="engine not progressing"):
        start("import time\ntime.sleep(600)", watch=engine_hangs)
    assert not list(run.services.glob("*.json"))


def test_at_a_fault_others_are_told_before_the_child_gets_its_time(start: Start, tmp_path: Path) -> None:
    """The child ends only when it sees that the others know: on Ctrl-C both use the same seconds."""
    told, saw = tmp_path / "told", tmp_path / "saw"
    body = (
        "import pathlib, signal, sys, time\n"
        f"told, saw = pathlib.Path({str(told)!r}), pathlib.Path({str(saw)!r})\n"
        "def end(*_):\n    (saw if told.exists() else told.with_name('late')).touch()\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        f"pathlib.Path({str(tmp_path / 'up')!r}).touch()\ntime.sleep(600)"
    )

    def ctrl_c() -> None:
        if (tmp_path / "up").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(body, watch=ctrl_c, on_fault=told.touch)
    assert saw.exists() and not (tmp_path / "late").exists()


def test_a_child_that_fails_is_a_fault_and_one_that_ends_well_is_none(start: Start) -> None:
    told: list[int] = []
    start("pass", on_fault=lambda: told.append(1))
    assert told == []
    with pytest.raises(JobError, match="exit status 3"):
        start("import os\nos._exit(3)", on_fault=lambda: told.append(1))
    assert told == [1]
