"""A real mooncake_master on loopback, and a client that lends memory and can be filled to the last byte."""

from __future__ import annotations

import ctypes
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tasks.serve.command import master_argv
from tasks.stream.pinned import PinnedStore
from tasks.stream.store import StoreClient

MIB = 2**20
SEGMENT_BYTES = 64 * MIB
OBJECT_BYTES = 16 * MIB
START_S = 60.0


def free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        return one.getsockname()[1], two.getsockname()[1]


@contextmanager
def running_master(log: Path) -> Iterator[str]:
    """`host:port` of a master that listens; it is killed afterwards."""
    rpc, metrics = free_ports()
    with open(log, "w") as stream:
        process = subprocess.Popen(
            master_argv("127.0.0.1", rpc, metrics), stdout=stream, stderr=stream, start_new_session=True
        )
    try:
        deadline = time.monotonic() + START_S
        while True:
            assert process.poll() is None, log.read_text()[-2000:]
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", rpc)) == 0:
                    break
            assert time.monotonic() < deadline, "the master does not listen"
            time.sleep(0.05)
        yield f"127.0.0.1:{rpc}"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


class Writer:
    """A client that lends memory, with one registered buffer, as the connector has."""

    def __init__(self, master: str):
        self.client = StoreClient(master, segment_bytes=SEGMENT_BYTES)
        self.buffer = (ctypes.c_char * OBJECT_BYTES)()
        self.address = ctypes.addressof(self.buffer)
        assert self.client.raw.register_buffer(self.address, OBJECT_BYTES) == 0

    def pinned(self, timeout_s: float) -> PinnedStore:
        return PinnedStore(self.client.raw, put_timeout_s=timeout_s, segment_bytes=SEGMENT_BYTES)

    def fill(self, byte: int) -> None:
        ctypes.memset(self.address, byte, OBJECT_BYTES)

    def occupy(self, prefix: str) -> list[str]:
        """Take all space that is left with pinned objects, down to the last byte; their keys."""
        config = self.client._pinned
        keys: list[str] = []
        size = OBJECT_BYTES
        while size >= 1:
            key = f"{prefix}{len(keys)}"
            if self.client.raw.put_from(key, self.address, size, config) == 0:
                keys.append(key)
            else:
                size //= 2
        return keys
