"""Real small processes: what a run starts is registered, logged, and ended with all it started."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest

from tasks.processes.identity import is_running, process_row, start_time
from tasks.processes.launcher import LocalLauncher, ProcessSpec
from tasks.processes.ports import free_port
from tasks.processes.registry import reap
from tasks.processes.service import running
from tasks.run_folder import RunFolder

Eventually = Callable[[Callable[[], object]], None]

# A leader that starts a child in its group and a grandchild in a session of its own, and writes all pids.
FAMILY = """
import subprocess, sys, time
sleeper = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
child = subprocess.Popen(sleeper)
stray = subprocess.Popen(sleeper, start_new_session=True)
print("pids", child.pid, stray.pid, flush=True)
time.sleep(600)
"""


def python(name: str, code: str, **more: object) -> ProcessSpec:
    argv = (sys.executable, "-S", "-c", code)
    return ProcessSpec(name=name, stage="serve", role="serve", argv=argv, **more)  # type: ignore[arg-type]


def pids_of(log: Path) -> list[int]:
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return next(([int(pid) for pid in line[1:]] for line in lines if line[:1] == ["pids"]), [])


def test_entry_log_and_session(run: RunFolder, eventually: Eventually) -> None:
    spec = python("one", "import sys, time; print('hello'); sys.stdin.read(); time.sleep(600)", ports=(1234,))
    with running(LocalLauncher(), spec, run) as handle:
        entry = json.loads((run.services / "one.json").read_text())
        assert (entry["pid"], entry["pgid"], entry["ports"]) == (handle.pid, handle.pid, [1234])
        assert entry["owner_pid"] == os.getpid() and entry["owner_start_time"] == start_time(os.getpid())
        assert entry["argv"] == list(spec.argv) and entry["start_time"] == start_time(handle.pid)
        row = process_row(handle.pid)
        assert row is not None and row.session == row.group == handle.pid
        eventually(lambda: handle.tail() == ["hello"])
        assert handle.log == run.logs / "one.log" and handle.log.stat().st_mode & 0o077 == 0
    assert handle.poll() is not None
    assert not (run.services / "one.json").exists()


def test_stop_ends_children_that_left_the_group(run: RunFolder, eventually: Eventually) -> None:
    handle = LocalLauncher().start(python("family", FAMILY), run)
    eventually(lambda: pids_of(handle.log))
    started = {pid: start_time(pid) for pid in [handle.pid, *pids_of(handle.log)]}
    handle.stop()
    handle.stop()
    assert not any(is_running(pid, start) for pid, start in started.items())


def test_children_of_a_leader_that_died_are_ended(run: RunFolder, eventually: Eventually) -> None:
    handle = LocalLauncher().start(python("family", FAMILY), run)
    eventually(lambda: pids_of(handle.log))
    started = {pid: start_time(pid) for pid in pids_of(handle.log)}
    os.kill(handle.pid, 9)
    eventually(lambda: handle.poll() == -9)
    handle.stop()
    assert not any(is_running(pid, start) for pid, start in started.items())


def test_one_that_ignores_term_is_killed(run: RunFolder, eventually: Eventually) -> None:
    code = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    )
    handle = LocalLauncher().start(python("deaf", code), run)
    eventually(lambda: "deaf" in handle.tail())
    handle.stop(grace_s=0.2)
    assert handle.poll() == -9


def test_process_outlives_the_thread_that_asked_for_it(run: RunFolder) -> None:
    handles = []
    thread = threading.Thread(
        target=lambda: handles.append(LocalLauncher().start(python("t", "import time; time.sleep(600)"), run))
    )
    thread.start()
    thread.join()
    with pytest.raises(TimeoutError):
        _wait_end(handles[0]._process)
    handles[0].stop()


def _wait_end(process: object) -> None:
    import subprocess

    try:
        process.wait(timeout=0.4)  # type: ignore[attr-defined]
    except subprocess.TimeoutExpired:
        raise TimeoutError from None


def test_block_that_raises_leaves_nothing(run: RunFolder) -> None:
    spec = python("x", "import time; time.sleep(600)")
    with pytest.raises(KeyboardInterrupt), running(LocalLauncher(), spec, run) as handle:
        raise KeyboardInterrupt
    assert handle.poll() is not None


def test_stop_waits_until_the_port_is_free(run: RunFolder, eventually: Eventually) -> None:
    port = free_port()
    code = (
        f"import socket, time; s = socket.create_server(('127.0.0.1', {port})); print('up'); time.sleep(600)"
    )
    handle = LocalLauncher().start(python("listener", code, ports=(port,)), run)
    eventually(lambda: "up" in handle.tail())
    handle.stop()
    socket.create_server(("127.0.0.1", port)).close()


def test_unknown_program_ends_with_words_in_its_log(run: RunFolder, eventually: Eventually) -> None:
    spec = ProcessSpec(name="none", stage="serve", role="serve", argv=("no-such-program-here",))
    handle = LocalLauncher().start(spec, run)
    eventually(lambda: handle.poll() is not None)
    assert handle.poll() == 127 and "no-such-program-here" in handle.tail()[-1]
    handle.stop()


def test_secrets_are_given_but_not_written(run: RunFolder, eventually: Eventually) -> None:
    code = "import os, time; print(os.environ['VLLM_API_KEY'][:3], flush=True); time.sleep(600)"
    spec = python("keyed", code, secret_env={"VLLM_API_KEY": "abc-very-secret"})
    with running(LocalLauncher(), spec, run) as handle:
        eventually(lambda: handle.tail() == ["abc"])
        assert "very-secret" not in (run.services / "keyed.json").read_text()
        assert "very-secret" not in repr(spec)


INTERRUPTED = """
import sys, threading
from pathlib import Path
from tasks.processes.launcher import LocalLauncher, ProcessSpec
from tasks.run_folder import RunFolder
start = threading.Thread.start
def start_and_interrupt(thread):
    start(thread)
    if thread.name.startswith("launcher"):
        raise KeyboardInterrupt
threading.Thread.start = start_and_interrupt
spec = ProcessSpec(name="one", stage="serve", role="serve", argv=(sys.executable, "-S", "-c", "pass"))
try:
    LocalLauncher().start(spec, RunFolder(Path(sys.argv[1])))
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_in_the_first_start_does_not_keep_the_program_from_ending(run: RunFolder) -> None:
    """A pool's thread that was interrupted in its start is never told to end, and waited for at exit."""
    argv = (sys.executable, "-c", INTERRUPTED, str(run.path))
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.stdout == "interrupted\n", done.stderr
    assert done.returncode == 0


def test_a_process_is_registered_before_a_ctrl_c_can_lose_it(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    """The flow is interrupted while it waits for the fork: the guard knows what to end."""

    def interrupted(future: Future[object], timeout: float | None = None) -> object:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Future, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            LocalLauncher().start(python("lost", "import time; time.sleep(600)"), run)
    eventually(lambda: (run.services / "lost.json").exists())
    assert reap(run.services, grace_s=1.0)
    assert not (run.services / "lost.json").exists()
