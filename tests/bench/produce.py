"""Row `produce`: our sealed, pinned put against upstream's `put_sample`, same tensors, store and segment.

    PYTHONPATH=. python tests/bench/produce.py        the rows alone

Both writers use one Mooncake client with one segment, so that their copies and transfers go the same ways;
keys are unique by construction, as the connector's are. What each stored is compared before it is timed.
"""

from __future__ import annotations

import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from rows import Row, machine

MIB = 2**20
SIZES_MIB = (1, 64, 256)
GOAL = 0.90
_WIDTH = 4096
_ROOM_MIB = 64
_START_S = 30.0


def rows(folder: Path) -> list[Row]:
    """What `make bench` prints; `folder` stays empty."""
    return produce()


def produce(sizes_mib: tuple[int, ...] = SIZES_MIB, repetitions: int = 7) -> list[Row]:
    """One row for each size: GB of payload a second, medians of interleaved puts."""
    from hs_connectors.mooncake_store import MooncakeHiddenStatesStore, MooncakeStoreConfig

    from tasks.stream.pinned import PinnedStore
    from tasks.stream.sealed import SealedStore

    with _store_master() as address:
        config = MooncakeStoreConfig(
            local_hostname="127.0.0.1",
            master_server_address=address,
            global_segment_size=(max(sizes_mib) + _ROOM_MIB) * MIB,
            local_buffer_size=(max(sizes_mib) + _ROOM_MIB) * MIB,
        )
        plain, ours = MooncakeHiddenStatesStore(config).setup(), SealedStore(config, put_timeout_s=60.0)
        ours._store = PinnedStore(
            plain._store, put_timeout_s=60.0, segment_bytes=config.global_segment_size, unique_keys=True
        )
        try:
            return [_row(Sides(plain, ours, size), size, repetitions) for size in sizes_mib]
        finally:
            ours.close()


class Sides:
    """Both writers with one sample of `size_mib`."""

    def __init__(self, plain: Any, ours: Any, size_mib: int):
        import torch

        rows = size_mib * MIB // (2 * _WIDTH)
        self.raw = plain._store
        self._writers = {"plain": plain, "ours": ours}
        self._tensors = {
            "hidden_states": torch.randn(rows, 1, _WIDTH, dtype=torch.bfloat16),
            "token_ids": torch.arange(rows),
        }
        self._manifests = {name: _manifest(name, self._tensors) for name in self._writers}
        self.payload_bytes = sum(tensor.nbytes for tensor in self._tensors.values())

    def seconds(self, name: str, *, check: bool) -> float:
        """Seconds of one put of one side; what it put is removed again."""
        started = time.perf_counter()
        self._writers[name].put_sample(self._manifests[name], self._tensors)
        took = time.perf_counter() - started
        if check:
            self._check(name)
        if self.raw.remove(name, True) != 0:
            raise RuntimeError(f"'{name}' was not in the store")
        return took

    def _check(self, name: str) -> None:
        import torch

        from tasks.stream.checksum import check_seal

        stored = memoryview(self.raw.get(name))
        layout = self._manifests[name]["tensors"]
        for each, tensor in self._tensors.items():
            start = layout[each]["offset"]
            wanted = memoryview(tensor.view(-1).view(torch.uint8).numpy())
            if stored[start : start + len(wanted)] != wanted:
                raise RuntimeError(f"{name} stored other bytes of {each} than it was given")
        if name == "ours":
            check_seal(stored)


def _row(sides: Sides, size_mib: int, repetitions: int) -> Row:
    seconds: dict[str, list[float]] = {"plain": [], "ours": []}
    for turn in range(repetitions + 1):
        for name in ("plain", "ours") if turn % 2 else ("ours", "plain"):
            took = sides.seconds(name, check=turn == 0)
            if turn:
                seconds[name].append(took)
    rate = {name: sides.payload_bytes / statistics.median(took) / 1e9 for name, took in seconds.items()}
    conditions = f"{repetitions} interleaved puts, store on loopback, segment of its own; {machine()}"
    ratio = round(rate["ours"] / rate["plain"], 3)
    name = f"produce {size_mib} MiB"
    return Row(
        "stream", name, round(rate["ours"], 3), round(rate["plain"], 3), ratio, GOAL, "GB/s", conditions
    )


def _manifest(name: str, tensors: dict[str, Any]) -> dict[str, Any]:
    from hs_connectors.mooncake_store import VERSION, packed_layout

    from tasks.stream.sealed import enlarge_by_seal

    layout, total = packed_layout({each: (list(t.shape), t.dtype) for each, t in tensors.items()})
    metadata = {"num_tokens": len(tensors["token_ids"]), "total_aligned_bytes": total, "extract_mode": "all"}
    manifest = {"handle": name, "version": VERSION, "tensors": layout, "metadata": metadata}
    if name == "ours":
        enlarge_by_seal(manifest)
    return manifest


@contextmanager
def _store_master() -> Iterator[str]:
    """A store master on loopback; its `host:port`."""
    from tasks.processes.ports import free_port
    from tasks.serve.command import master_argv

    port, metrics = free_port("127.0.0.1"), free_port("127.0.0.1")
    process = subprocess.Popen(
        master_argv("127.0.0.1", port, metrics), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + _START_S
        while process.poll() is None and time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        else:
            raise RuntimeError(f"mooncake_master did not start on port {port} within {_START_S:.0f} s")
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    for one in produce():
        print(f"{one.name:<18} ours {one.value:>7} plain {one.baseline:>7} {one.unit}  ratio {one.ratio}")
