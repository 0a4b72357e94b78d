"""A store on IPv6: the master in brackets, clients that give an IPv6 address as their own."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from profiles.load import load_profile
from tasks.processes.guard import close_registry
from tasks.processes.launcher import LocalLauncher
from tasks.run_folder import create_run
from tasks.serve.command import transport_of
from tasks.serve.store_master import start_master


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        not has_ipv6(), reason="this machine has no ::1; run: sysctl net.ipv6.conf.lo.disable_ipv6=0"
    ),
]

# Mooncake reads its variables once, when its library is loaded: so a process of its own.
ROUND_TRIP = """
import sys
from tasks.stream.store import StoreClient
master, host = sys.argv[1:]
lender, reader = StoreClient(master, host=host, segment_bytes=64 << 20), StoreClient(master, host=host)
lender.put("k", b"x" * 100_000)
assert bytes(reader.get("k", 100_000)) == b"x" * 100_000
print("read back")
reader.close()
lender.close()
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Address of a master on `::1`, the own address of its clients, and their environment."""
    profile = load_profile("laptop", {"store": {"host": "[::1]"}}).profile
    run = create_run(tmp_path, "run-1", profile)
    handle, master = start_master(profile, run, LocalLauncher())
    transport = transport_of(profile)
    try:
        yield master, transport.address(), dict(transport.environment())
    finally:
        handle.stop()
        close_registry(run.services)


def test_a_sample_is_written_and_read(store: tuple[str, str, dict[str, str]]) -> None:
    master, host, environment = store
    assert master.startswith("[::1]:") and host == "::1"
    done = subprocess.run(
        [sys.executable, "-c", ROUND_TRIP, master, host],
        env={"PYTHONPATH": ":".join(sys.path), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "read back" in done.stdout, done.stderr[-3000:]
