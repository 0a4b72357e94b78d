"""Ports: take a free one, or say who holds the one that was asked for."""

from __future__ import annotations

import socket

from tasks.errors import PortInUse
from tasks.processes.ending import port_is_free

_given: set[int] = set()


def free_port(host: str = "127.0.0.1") -> int:
    """A port that is free now and that this process did not hand out before."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    while True:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((host, 0))
            port = int(probe.getsockname()[1])
        if port not in _given:
            _given.add(port)
            return port


def require_free(host: str, port: int, field: str = "") -> None:
    """Refuse a port that another program listens on.

    Args:
        field: Profile field that names the port, for the message.

    Raises:
        PortInUse: With the program that holds it, if that can be known.
    """
    if port_is_free(host, port):
        return
    holder = port_holder(port)
    raise PortInUse(
        f"port {port} on {host} is in use by {holder}",
        where=field or f"{host}:{port}",
        hint="end that program, or name another port (0 takes a free one)",
    )


def port_holder(port: int) -> str:
    """Name and pid of the program that listens on `port`, or "another program"."""
    import psutil

    pids = listening_pids(port)
    for pid in pids:
        try:
            return f"{psutil.Process(pid).name()} (pid {pid})"
        except psutil.Error:
            continue
    return "another program"


def listening_pids(port: int) -> set[int]:
    """Processes of this user that listen on TCP `port`."""
    import psutil

    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.Error:
        return set()
    return {
        c.pid
        for c in connections
        if c.pid and c.status == psutil.CONN_LISTEN and c.laddr and c.laddr.port == port
    }
