"""A real store with sealed samples in it, put there by a process of its own: what the consuming rows read.

The process lends the store its memory and ends when its standard input does.
"""

from __future__ import annotations

import ctypes
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tasks.stream.checksum import SEAL_BYTES, seal
from tasks.stream.store import StoreClient, check

ROOT = Path(__file__).resolve().parents[2]
MIB = 2**20
LAYERS, HIDDEN = 6, 576
ROW_BYTES = LAYERS * HIDDEN * 4 + 8
_READY_S = 120.0


@dataclass(frozen=True)
class StoredSample:
    """One object: `token_ids [rows]`, then `hidden_states [rows, LAYERS, HIDDEN]` float32, then the seal."""

    key: str
    rows: int

    @property
    def bytes(self) -> int:
        return self.rows * ROW_BYTES + SEAL_BYTES


def sample_of(key: str, size: int) -> StoredSample:
    """An object of about `size` bytes, not more."""
    return StoredSample(key, (size - SEAL_BYTES) // ROW_BYTES)


@contextmanager
def stored(samples: Sequence[StoredSample], folder: Path) -> Iterator[StoreClient]:
    """A client of a store that holds `samples`."""
    program = shutil.which("mooncake_master", path=str(Path(sys.executable).parent))
    if program is None:
        raise FileNotFoundError("mooncake_master is not beside this Python; run: make setup")
    rpc, metrics = _free_ports()
    argv = [program, "-rpc_address=127.0.0.1", f"-rpc_port={rpc}", "-metrics_host=127.0.0.1"]
    argv.append(f"-metrics_port={metrics}")
    log = (folder / "store.log").open("wb")
    master = subprocess.Popen(argv, stdout=log, stderr=log)
    producer: subprocess.Popen[bytes] | None = None
    try:
        _wait_for(rpc, master)
        address = f"127.0.0.1:{rpc}"
        what = [f"{one.key}={one.rows}" for one in samples]
        command = [sys.executable, __file__, address, *what]
        producer = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            env={"PYTHONPATH": str(ROOT), "PATH": ""},
        )  # fmt: skip
        assert producer.stdout is not None
        if not producer.stdout.readline().startswith(b"ready"):
            raise RuntimeError(f"the producer failed: {(folder / 'store.log').read_text()[-2000:]}")
        largest = max(one.bytes for one in samples)
        with StoreClient(address, local_buffer_bytes=2 * largest + 16 * MIB) as client:
            yield client
    finally:
        for process in (producer, master):
            if process is not None:
                process.kill()
                process.communicate()
        log.close()


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        return one.getsockname()[1], two.getsockname()[1]


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError("mooncake_master ended at once")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"mooncake_master does not listen on {port}")


def produce(master: str, samples: Sequence[StoredSample]) -> None:
    """Put the samples, hard-pinned, and keep their memory until standard input ends."""
    import numpy as np
    from mooncake.store import ReplicateConfig

    sizes = [one.bytes for one in samples]
    pinned = ReplicateConfig()
    pinned.with_hard_pin = True
    segment = sum(size + MIB for size in sizes) * 5 // 4 + 64 * MIB
    client = StoreClient(master, local_buffer_bytes=max(sizes) + 64 * MIB, segment_bytes=segment)
    buffer = (ctypes.c_char * max(sizes))()
    address = ctypes.addressof(buffer)
    check("register_buffer", "samples", client.raw.register_buffer(address, len(buffer)))
    view = memoryview(buffer).cast("B")
    for number, one in enumerate(samples):
        payload = np.frombuffer(view[: one.bytes - SEAL_BYTES], dtype=np.float32)
        payload[:] = np.random.default_rng(number).standard_normal(len(payload), dtype=np.float32)
        ids = np.frombuffer(view[: 8 * one.rows], dtype=np.int64)
        ids[:] = np.arange(one.rows)
        view[one.bytes - SEAL_BYTES : one.bytes] = seal(view[: one.bytes - SEAL_BYTES])
        check("put", one.key, int(client.raw.put_from(one.key, address, one.bytes, pinned)))
    print("ready", flush=True)
    sys.stdin.read()
    client.close()


if __name__ == "__main__":
    named = [argument.split("=") for argument in sys.argv[2:]]
    produce(sys.argv[1], [StoredSample(key, int(rows)) for key, rows in named])
