"""A small process that ends what its owner leaves: `python -m tasks.processes.guard SERVICES PID START`.

A flow that is killed cannot end its servers. The guard waits in its own session until its owner is
gone, ends the owner's registered processes, and exits. It also exits when its mark is removed.
Standard library only, so that it stays small.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

from tasks.processes.identity import is_running, start_time
from tasks.processes.registry import Owned, read_entries, reap
from tasks.processes.slurm.jobs import read_jobs

_CHECK_S = 1.0
_GRACE_S = 3.0  # the kernel told its direct children already; in all it must stay within 15 s

_guards: dict[Path, subprocess.Popen[bytes]] = {}
_lock = threading.Lock()


def start_guard(services_dir: Path) -> None:
    """Make sure that a guard of this process watches `services_dir`."""
    with _lock:
        guard = _guards.get(services_dir)
        if guard is not None and guard.poll() is None and _mark(services_dir, os.getpid()).exists():
            return
        services_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        _mark(services_dir, os.getpid()).touch(mode=0o600)
        owner = os.getpid()
        _guards[services_dir] = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tasks.processes.guard",
                str(services_dir),
                str(owner),
                str(start_time(owner)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME") if name in os.environ},
        )


def close_registry(services_dir: Path) -> None:
    """End the guard of a run that is over; it stays while a process of the run is still registered."""
    if any(read_entries(services_dir)) or any(read_jobs(services_dir)):
        return
    with _lock:
        guard = _guards.pop(services_dir, None)
        _mark(services_dir, os.getpid()).unlink(missing_ok=True)
    if guard is not None:
        guard.terminate()
        guard.wait()


def _mark(services_dir: Path, owner: int) -> Path:
    return services_dir / f".guard-{owner}"


def watch(services_dir: Path, owner: int, owner_start: int) -> None:
    """Wait for the end of the owner or of the mark, then end what the owner left."""
    mark = _mark(services_dir, owner)
    try:
        descriptor = os.pidfd_open(owner)
    except OSError:
        descriptor = -1  # already gone, or a kernel without pidfd: the start time below decides
    poller = select.poll()
    if descriptor >= 0:
        poller.register(descriptor, select.POLLIN)
    while is_running(owner, owner_start):
        if not mark.exists():
            return
        poller.poll(_CHECK_S * 1000)

    def owned(entry: Owned) -> bool:
        return entry.owner_pid == owner and entry.owner_start_time == owner_start

    reap(services_dir, grace_s=_GRACE_S, only=owned)
    mark.unlink(missing_ok=True)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    watch(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))


if __name__ == "__main__":
    main()
