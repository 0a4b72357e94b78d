"""Jobs of a run, on disk: what a flow that died leaves at Slurm is found by its name and cancelled.

Standard library only: the guard process imports it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tasks.processes.identity import boot_id, host_name, is_running, start_time
from tasks.processes.slurm.commands import CommandFailed, cancel_named, jobs_named

_SUFFIX = ".slurm.json"
_GONE_S = 10.0
_POLL_S = 0.2


@dataclass(frozen=True)
class JobEntry:
    """A job that was or is about to be submitted. It is written first: a flow may die in between."""

    job_name: str
    host: str
    boot: str
    owner_pid: int
    owner_start_time: int
    conf: str = ""
    """`SLURM_CONF` of the flow."""

    @property
    def is_here(self) -> bool:
        """Whether its owner is, or was, a process of this host since this boot."""
        return self.host == host_name() and self.boot == boot_id()

    @property
    def owner_is_alive(self) -> bool:
        return is_running(self.owner_pid, self.owner_start_time)


def write_job(services_dir: Path, job_name: str) -> Path:
    """Register a job of this process under its name."""
    services_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    owner = os.getpid()
    conf = os.environ.get("SLURM_CONF", "")
    entry = JobEntry(job_name, host_name(), boot_id(), owner, start_time(owner), conf)
    path = services_dir / f"{job_name}{_SUFFIX}"
    path.write_text(json.dumps(asdict(entry)), encoding="utf-8")
    return path


def read_jobs(services_dir: Path) -> Iterator[tuple[Path, JobEntry]]:
    """Registered jobs of a run; files that are none are passed over."""
    for path in sorted(services_dir.glob(f"*{_SUFFIX}")):
        try:
            yield path, JobEntry(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            continue


def reap_job(path: Path, entry: JobEntry) -> str:
    """Cancel one registered job and forget it; returns a line for the log.

    A job of an unreachable Slurm stays registered for the next try; meanwhile it ends by itself when it no
    longer hears of the flow.
    """
    try:
        found = jobs_named(entry.job_name, entry.conf)
        if found:
            cancel_named(entry.job_name, entry.conf)
        left = _wait_gone(entry) if found else []
    except CommandFailed as error:
        return f"{entry.job_name}: could not be cancelled now: {error}"
    if left:
        return f"{entry.job_name}: Slurm is still ending job {', '.join(left)}"
    path.unlink(missing_ok=True)
    return f"{entry.job_name}: " + (f"cancelled job {', '.join(found)}" if found else "gone")


def _wait_gone(entry: JobEntry) -> list[str]:
    deadline = time.monotonic() + _GONE_S
    while (left := jobs_named(entry.job_name, entry.conf)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return left
