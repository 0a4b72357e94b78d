"""Processes of a run, on disk: what a run that dies leaves behind can be found and ended.

Standard library only: the guard process imports it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from tasks.processes.ending import end, members, wait_ports_free
from tasks.processes.identity import boot_id, host_name, is_running
from tasks.processes.slurm.jobs import read_jobs, reap_job

_SECRET_FLAGS = ("--api-key", "--hf-token", "--ssl-keyfile-password")


class Owned(Protocol):
    """What has an owner process: a started process, or a job at Slurm."""

    @property
    def owner_pid(self) -> int: ...

    @property
    def owner_start_time(self) -> int: ...

    @property
    def is_here(self) -> bool: ...

    @property
    def owner_is_alive(self) -> bool: ...


@dataclass(frozen=True)
class Entry:
    """One started process. `start_time` counts clock ticks since boot `boot`."""

    name: str
    host: str
    boot: str
    pid: int
    pgid: int
    start_time: int
    argv: tuple[str, ...]
    ports: tuple[int, ...]
    owner_pid: int
    owner_start_time: int
    marker: str

    @property
    def is_here(self) -> bool:
        """Whether it was started on this host since this boot."""
        return self.host == host_name() and self.boot == boot_id()

    @property
    def owner_is_alive(self) -> bool:
        return is_running(self.owner_pid, self.owner_start_time)

    @property
    def is_running(self) -> bool:
        return self.is_here and is_running(self.pid, self.start_time)


def without_secrets(argv: tuple[str, ...]) -> tuple[str, ...]:
    """A command line that may be written down."""
    words: list[str] = []
    for word in argv:
        flag, equals, _ = word.partition("=")
        if words and words[-1] in _SECRET_FLAGS:
            words.append("***")
        else:
            words.append(f"{flag}=***" if equals and flag in _SECRET_FLAGS else word)
    return tuple(words)


def write_entry(services_dir: Path, entry: Entry) -> Path:
    """Register a process; readers see the whole entry or none."""
    services_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = services_dir / f"{entry.name}.json"
    temporary = services_dir / f".{entry.name}.{os.getpid()}.tmp"
    temporary.write_text(json.dumps(asdict(entry), indent=2), encoding="utf-8")
    os.replace(temporary, path)
    return path


def read_entries(services_dir: Path) -> Iterator[tuple[Path, Entry]]:
    """Entries of a run; files that are not entries are passed over."""
    for path in sorted(services_dir.glob("*.json")):
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            entry = Entry(**{**fields, "argv": tuple(fields["argv"]), "ports": tuple(fields["ports"])})
        except (OSError, ValueError, TypeError, KeyError):
            continue
        yield path, entry


def reap(
    services_dir: Path,
    *,
    grace_s: float = 5.0,
    only: Callable[[Owned], bool] = lambda entry: True,
) -> list[str]:
    """End every registered process of a run that is still the same process, with its whole group, and cancel
    its jobs at Slurm.

    What another host started is left alone; a recycled pid is never touched.

    Returns:
        One line for the log for each process that was ended or forgotten.
    """
    lines = []
    for path, entry in read_entries(services_dir):
        if entry.host != host_name() or not only(entry):
            continue
        ended = end(entry.pid, entry.start_time, entry.marker, grace_s) if entry.is_here else 0
        busy = wait_ports_free(entry.ports) if ended else []
        left = members(entry.pid, entry.start_time, entry.marker) if ended else {}
        if left:
            lines.append(f"{entry.name}: {len(left)} processes could not be ended: {sorted(left)}")
            continue
        path.unlink(missing_ok=True)
        lines.append(f"{entry.name} (pid {entry.pid}): " + (f"ended {ended} processes" if ended else "gone"))
        lines += [f"{entry.name}: port {port} is still busy" for port in busy]
    for path, job in read_jobs(services_dir):
        if job.host == host_name() and only(job):
            lines.append(reap_job(path, job))
    return lines


def reap_stale(root: Path) -> list[str]:
    """End what runs under `root` left behind whose owner process is dead; live owners are left alone."""
    lines = []
    for services_dir in sorted(root.glob("*/services")):
        found = reap(services_dir, only=lambda entry: not (entry.is_here and entry.owner_is_alive))
        lines += [f"{services_dir.parent.name}: {line}" for line in found]
    return lines
