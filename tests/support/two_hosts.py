"""Two "hosts" on one machine: network namespaces, each with its own loopback, joined by a veth pair."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

PREFIX_BITS = 24


@dataclass(frozen=True)
class Host:
    """One namespace.

    Args:
        name: Name of the namespace; `ip netns exec NAME` runs a command in it.
        device: Its end of the veth pair.
        address: Its address there.
    """

    name: str
    device: str
    address: str

    def command(self, *argv: str) -> list[str]:
        return ["ip", "netns", "exec", self.name, *argv]

    def processes(self) -> list[int]:
        words = ["ip", "netns", "pids", self.name]
        found = subprocess.run(words, capture_output=True, text=True, check=False)
        return [int(pid) for pid in found.stdout.split()]

    def close_ports(self, ports: str) -> None:
        """Refuse connections from here to TCP `ports` (one, or `from-to`) of any host."""
        _ip("-n", self.name, "rule", "add", "ipproto", "tcp", "dport", ports, "prohibit")

    def open_ports(self, ports: str) -> None:
        _ip("-n", self.name, "rule", "del", "ipproto", "tcp", "dport", ports, "prohibit")

    def limit_rate(self, rate: str | None) -> None:
        """Send no faster than `rate` (`50mbit`); None lifts the limit."""
        device = ("qdisc", "replace" if rate else "del", "dev", self.device, "root")
        limit = ("tbf", "rate", rate, "burst", "64kb", "latency", "400ms") if rate else ()
        words = ["tc", "-n", self.name, *device, *limit]
        subprocess.run(words, capture_output=True, text=True, check=True)


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Make both, and remove them with every process in them, however the test ends.

    Skips the test where namespaces cannot be made: that needs iproute2 and root.
    """
    number = os.getpid() % 100_000
    one = Host(f"rdspark-a{number}", f"rda{number}", "10.211.77.1")
    two = Host(f"rdspark-b{number}", f"rdb{number}", "10.211.77.2")
    if shutil.which("ip") is None:
        pytest.skip("iproute2 is not installed: apt-get install iproute2")
    try:
        _make(one, two)
        yield one, two
    finally:
        for host in (one, two):
            _remove(host)


def _make(one: Host, two: Host) -> None:
    try:
        _ip("netns", "add", one.name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces need root (run pytest with sudo): {error.stderr.strip()}")
    _ip("netns", "add", two.name)
    _ip("link", "add", one.device, "netns", one.name, "type", "veth", "peer", two.device, "netns", two.name)
    for host in (one, two):
        _ip("-n", host.name, "address", "add", f"{host.address}/{PREFIX_BITS}", "dev", host.device)
        _ip("-n", host.name, "link", "set", host.device, "up")
        _ip("-n", host.name, "link", "set", "lo", "up")


def _remove(host: Host) -> None:
    """A namespace lives as long as a process in it; only our own can be in there."""
    for pid in host.processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    subprocess.run(["ip", "netns", "del", host.name], capture_output=True, check=False)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], capture_output=True, text=True, check=True)
