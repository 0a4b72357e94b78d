"""End a service with everything it started, and nothing else. Standard library only."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping

from tasks.processes.identity import (
    ProcessRow,
    command_line,
    environment_holds,
    is_running,
    process_table,
)

MARKER = "RETRAIN_DSPARK_SERVICE"
_POLL_S = 0.05
_REST_GRACE_S = 3.0
_KILL_WAIT_S = 5.0

Members = dict[int, int]
"""pid -> start ticks."""


def members(leader: int, leader_start: int, marker: str) -> Members:
    """Processes of a service that still run: leader, group, session, descendants, marked ones.

    vLLM's engine and worker processes rename themselves, which destroys their readable environment,
    so where the leader is gone a process of the group counts if it is marked or carries such a name.
    """
    table = process_table()
    row = table.get(leader)
    leader_is_ours = row is not None and row.start_ticks == leader_start
    found = {pid for pid in table if environment_holds(pid, f"{MARKER}={marker}")} if marker else set()
    group = {p.pid for p in table.values() if leader in (p.group, p.session)}
    if leader_is_ours:
        found |= group | {leader}
    elif row is None:
        found |= {pid for pid in group if command_line(pid).startswith("VLLM::")}
    found |= _descendants(found, table)
    found -= {os.getpid(), 0, 1}
    return {pid: table[pid].start_ticks for pid in found if table[pid].state not in "ZX"}


def _descendants(roots: Iterable[int], table: Mapping[int, ProcessRow]) -> set[int]:
    children: dict[int, list[int]] = {}
    for row in table.values():
        children.setdefault(row.parent, []).append(row.pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def end(
    leader: int,
    leader_start: int,
    marker: str,
    grace_s: float,
    reaped: Callable[[], object] = lambda: None,
) -> int:
    """End a service: TERM to its leader, TERM to what the leader leaves behind, KILL to the rest.

    Args:
        grace_s: Time that the leader gets to end itself and its children in order.
        reaped: Called while waiting, so that a parent can collect the leader's exit status.

    Returns:
        Processes that ran when this began.
    """
    seen = members(leader, leader_start, marker)
    first = len(seen)
    leading = {leader: leader_start} if leader in seen else seen
    _signal(leading, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    rest_told = leading is seen
    while seen := _left(seen, leader, leader_start, marker, reaped):
        if time.monotonic() > deadline:
            break
        if leader not in seen and not rest_told:
            _signal(seen, signal.SIGTERM)
            rest_told = True
            deadline = min(deadline, time.monotonic() + _REST_GRACE_S)
        time.sleep(_POLL_S)
    deadline = time.monotonic() + _KILL_WAIT_S
    while seen and time.monotonic() < deadline:
        _signal(seen, signal.SIGKILL)
        time.sleep(_POLL_S)
        seen = _left(seen, leader, leader_start, marker, reaped)
    reaped()
    return first


def _left(
    seen: Members, leader: int, leader_start: int, marker: str, reaped: Callable[[], object]
) -> Members:
    """Those seen before that still run, and new ones that appeared meanwhile."""
    reaped()
    old = {pid: start for pid, start in seen.items() if is_running(pid, start)}
    return old | members(leader, leader_start, marker)


def _signal(targets: Mapping[int, int], number: signal.Signals) -> None:
    for pid, start in targets.items():
        if is_running(pid, start):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def port_is_free(host: str, port: int) -> bool:
    """Whether a server could bind that address now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def wait_ports_free(ports: Iterable[int], timeout_s: float = 10.0) -> list[int]:
    """Wait until the ports of an ended service can be bound again; returns those that stay busy."""
    deadline = time.monotonic() + timeout_s
    busy = [port for port in ports if not port_is_free("", port)]
    while busy and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        busy = [port for port in busy if not port_is_free("", port)]
    return busy
