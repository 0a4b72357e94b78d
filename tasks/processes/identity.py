"""Which process is meant: a pid alone may be recycled, a pid with its start time is not.

Standard library only and Linux only (`/proc`), since the guard process imports it and must stay small.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessRow:
    """One line of the process table. `start_ticks` counts clock ticks since boot."""

    pid: int
    parent: int
    group: int
    session: int
    state: str
    start_ticks: int


def process_row(pid: int) -> ProcessRow | None:
    """Row of `pid`, or None if there is no such process."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name before it may hold spaces and brackets
    return ProcessRow(
        pid=pid,
        state=fields[0],
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        start_ticks=int(fields[19]),
    )


def process_table() -> dict[int, ProcessRow]:
    """Every process that this user can see."""
    rows = (process_row(int(name)) for name in os.listdir(_PROC) if name.isdigit())
    return {row.pid: row for row in rows if row is not None}


def start_time(pid: int) -> int:
    """Start time of `pid` in ticks since boot, 0 if there is no such process."""
    row = process_row(pid)
    return row.start_ticks if row else 0


def is_running(pid: int, start_ticks: int) -> bool:
    """Whether that very process exists and is not a zombie."""
    row = process_row(pid)
    return row is not None and row.start_ticks == start_ticks and row.state not in "ZX"


def boot_id() -> str:
    """Changes with every boot; pids and start ticks mean nothing across it."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def host_name() -> str:
    return socket.gethostname()


def environment_holds(pid: int, assignment: str) -> bool:
    """Whether the environment that `pid` was started with holds `NAME=value`."""
    try:
        content = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False
    return assignment.encode() in content.split(b"\0")


def command_line(pid: int) -> str:
    try:
        content = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ""
    return content.replace(b"\0", b" ").decode(errors="replace").strip()
