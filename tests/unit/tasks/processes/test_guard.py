"""An owner that is killed leaves nothing: its guard ends what it had started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tasks.processes.guard import close_registry, start_guard
from tasks.processes.identity import boot_id, command_line, host_name, is_running, process_table, start_time
from tasks.processes.registry import Entry, write_entry
from tasks.run_folder import RunFolder

OWNER = """
import sys, time
from pathlib import Path
from tasks.processes.launcher import LocalLauncher, ProcessSpec
from tasks.run_folder import RunFolder
deaf = "import signal, subprocess, sys, time; signal.signal(15, signal.SIG_IGN); " \\
    "p = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)'], " \\
    "start_new_session=True); " \\
    "print('pids', p.pid, flush=True); time.sleep(600)"
spec = ProcessSpec(name="deaf", stage="serve", role="serve", argv=(sys.executable, "-S", "-c", deaf))
LocalLauncher().start(spec, RunFolder(Path(sys.argv[1])))
time.sleep(600)
"""


def guards_of(services: Path) -> list[int]:
    return [pid for pid in process_table() if f"guard {services} " in command_line(pid)]


def test_killed_owner(run: RunFolder, eventually: Callable[[Callable[[], object]], None]) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(run.path)])
    log = run.logs / "deaf.log"
    eventually(lambda: log.exists() and "pids" in log.read_text())
    stray = int(log.read_text().split()[1])
    leader = json.loads((run.services / "deaf.json").read_text())["pid"]
    started = {pid: start_time(pid) for pid in (stray, leader)}
    assert len(guards_of(run.services)) == 1
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    eventually(lambda: not any(is_running(pid, start) for pid, start in started.items()))
    eventually(lambda: not guards_of(run.services))
    assert not list(run.services.iterdir())


def test_one_guard_for_a_run_until_it_is_closed(run: RunFolder) -> None:
    start_guard(run.services)
    start_guard(run.services)
    assert len(guards_of(run.services)) == 1
    close_registry(run.services)
    assert not guards_of(run.services) and not list(run.services.iterdir())
    close_registry(run.services)


def test_guard_stays_while_a_process_is_registered(run: RunFolder) -> None:
    """A process that could not be ended is still ended when its owner is gone."""
    start_guard(run.services)
    mine = (os.getpid(), start_time(os.getpid()))
    still_there = Entry("stuck", host_name(), boot_id(), 1, 1, 0, ("stuck",), (), *mine, "run-1/stuck/0")
    entry = write_entry(run.services, still_there)
    close_registry(run.services)
    assert len(guards_of(run.services)) == 1
    entry.unlink()
    close_registry(run.services)
    assert not guards_of(run.services)


def test_guard_imports_the_standard_library_only() -> None:
    heavy = ("pydantic", "psutil", "httpx", "torch")
    code = f"import sys, tasks.processes.guard; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
