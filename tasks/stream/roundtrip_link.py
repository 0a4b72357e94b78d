"""How the two ends of the round trip find each other: address checks, and a line of JSON each way.

Causes are named here where an end can name them before any payload moves; the rest follows from return
codes and log lines.
"""

from __future__ import annotations

import ipaddress
import json
import socket
from typing import Any

from tasks.stream.roundtrip_counters import resolve

CONNECT_TIMEOUT_S = 5.0


class EndStopped(Exception):
    """This end cannot go on.

    Args:
        cause_id: Name of the cause.
        what: What happened, with the values involved.
    """

    def __init__(self, cause_id: str, what: str):
        super().__init__(what)
        self.cause_id = cause_id
        self.what = what


def require_own_address(host: str, spans_hosts: bool) -> None:
    """Refuse an address under which the other host could not reach this one.

    Raises:
        EndStopped: It does not resolve, is loopback although the plan spans hosts, or is another node's.
    """
    try:
        addresses = sorted(resolve(host))
    except OSError as error:
        raise EndStopped("unknown_host", f"'{host}' does not resolve on its own node: {error}") from None
    loopback = [address for address in addresses if ipaddress.ip_address(address).is_loopback]
    if spans_hosts and loopback:
        raise EndStopped(
            "loopback_host",
            f"'{host}' is {', '.join(loopback)} on its own node, so the other host would dial itself",
        )
    if not any(_can_bind(address) for address in addresses):
        raise EndStopped("wrong_host", f"'{host}' ({', '.join(addresses)}) is not an address of this node")


def connect(address: str, what: str) -> socket.socket:
    """Connect to `host:port`.

    Raises:
        EndStopped: Nothing accepts connections there, or the way is closed.
    """
    host, _, port = address.rpartition(":")
    try:
        return socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S)
    except OSError as error:
        raise EndStopped("closed_port", f"{what} at {address} does not accept connections: {error}") from None


def listen(host: str) -> socket.socket:
    """A listening socket on a free port of `host`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.bind((host, 0))
    listener.listen(1)
    return listener


class Link:
    """One line of JSON each way at a time; a missing answer means that the other end has gone."""

    def __init__(self, connection: socket.socket, timeout_s: float):
        connection.settimeout(timeout_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._lines = connection.makefile("rb")

    def send(self, message: dict[str, Any]) -> None:
        """Raises EndStopped if the other end has gone."""
        try:
            self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise EndStopped("peer_gone", f"the other end has gone: {error}") from None

    def receive(self) -> dict[str, Any]:
        """Raises EndStopped if the other end has gone or stays silent."""
        try:
            line = self._lines.readline()
        except TimeoutError:
            raise EndStopped("timeout", f"silence for {self._connection.gettimeout():g} s") from None
        except OSError as error:
            raise EndStopped("peer_gone", f"the other end has gone: {error}") from None
        if not line:
            raise EndStopped("peer_gone", "the other end has gone")
        message: dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        self._lines.close()
        self._connection.close()


def accept(listener: socket.socket, timeout_s: float) -> Link:
    """Wait for the other end.

    Raises:
        EndStopped: Nobody came.
    """
    listener.settimeout(timeout_s)
    try:
        connection, _ = listener.accept()
    except TimeoutError:
        raise EndStopped("timeout", f"the consumer did not come within {timeout_s:g} s") from None
    return Link(connection, timeout_s)


def _can_bind(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
