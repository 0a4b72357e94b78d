"""Reaping: only what is registered, only if it is still the same process, never a live owner's."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.processes.identity import boot_id, host_name, is_running, start_time
from tasks.processes.registry import Entry, read_entries, reap, reap_stale, without_secrets, write_entry
from tasks.run_folder import RunFolder


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", "import time; time.sleep(600)"], start_new_session=True
    )
    yield process
    process.kill()
    process.wait()


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


def entry_of(process: subprocess.Popen[bytes], owner_pid: int, owner_start: int = 1) -> Entry:
    return Entry(
        name="sleeper",
        host=host_name(),
        boot=boot_id(),
        pid=process.pid,
        pgid=process.pid,
        start_time=start_time(process.pid),
        argv=("sleep",),
        ports=(),
        owner_pid=owner_pid,
        owner_start_time=owner_start,
        marker="run-1/sleeper/0",
    )


def alive(entry: Entry) -> bool:
    return is_running(entry.pid, entry.start_time)


def test_reap_ends_and_forgets(run: RunFolder, sleeper: subprocess.Popen[bytes]) -> None:
    entry = entry_of(sleeper, dead_pid())
    write_entry(run.services, entry)
    assert reap(run.services) == [f"sleeper (pid {sleeper.pid}): ended 1 processes"]
    assert not alive(entry) and not list(run.services.glob("*.json"))
    assert reap(run.services) == []


def test_recycled_pid_is_not_touched(run: RunFolder, sleeper: subprocess.Popen[bytes]) -> None:
    entry = entry_of(sleeper, dead_pid())
    write_entry(run.services, dataclasses.replace(entry, start_time=entry.start_time - 1))
    assert reap(run.services) == [f"sleeper (pid {sleeper.pid}): gone"]
    assert alive(entry)


def test_entry_of_an_earlier_boot_is_forgotten(run: RunFolder, sleeper: subprocess.Popen[bytes]) -> None:
    entry = entry_of(sleeper, dead_pid())
    write_entry(run.services, dataclasses.replace(entry, boot="earlier"))
    reap_stale(run.path.parent)
    assert alive(entry) and not list(run.services.glob("*.json"))


def test_other_host_is_left_alone(run: RunFolder, sleeper: subprocess.Popen[bytes]) -> None:
    entry = entry_of(sleeper, dead_pid())
    write_entry(run.services, dataclasses.replace(entry, host="another"))
    assert reap(run.services) == [] and reap_stale(run.path.parent) == []
    assert alive(entry) and len(list(read_entries(run.services))) == 1


def test_stale_means_that_the_owner_is_dead(run: RunFolder, sleeper: subprocess.Popen[bytes]) -> None:
    import os

    entry = entry_of(sleeper, os.getpid(), start_time(os.getpid()))
    write_entry(run.services, entry)
    assert reap_stale(run.path.parent) == []
    assert alive(entry)
    write_entry(run.services, dataclasses.replace(entry, owner_start_time=1))
    assert reap_stale(run.path.parent) == [f"run-1: sleeper (pid {sleeper.pid}): ended 1 processes"]
    assert not alive(entry)


def test_damaged_entries_are_passed_over(run: RunFolder) -> None:
    (run.services / "half.json").write_text('{"name": "ha')
    (run.services / "other.json").write_text('{"a": 1}')
    assert list(read_entries(run.services)) == [] and reap(run.services) == []


def test_no_services_folder(tmp_path: Path) -> None:
    assert reap(tmp_path / "none") == [] and reap_stale(tmp_path / "none") == []


def test_keys_in_command_lines_are_not_written() -> None:
    argv = ("vllm", "--api-key", "abc", "--api-key=abc", "--model", "m")
    assert without_secrets(argv) == ("vllm", "--api-key", "***", "--api-key=***", "--model", "m")
