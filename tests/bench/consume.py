"""Row `consume`: receiving samples with their checksum, against the store's bare `get_into` of the same."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rows import Row, cpus
from store_objects import MIB, StoredSample, sample_of, stored

from tasks.stream.checksum import check_seal
from tasks.stream.store import StoreClient, check

GOAL = 0.90
SIZES_MIB = (1, 64, 256)
_BYTES_A_TURN = 256 * MIB


def interleaved(works: Sequence[Callable[[], object]], repetitions: int) -> list[float]:
    """Median seconds of each, one after another in every repetition, after one warm-up."""
    seconds: list[list[float]] = [[] for _ in works]
    for turn in range(repetitions + 1):
        for work, times in zip(works, seconds, strict=True):
            started = time.perf_counter()
            work()
            if turn:
                times.append(time.perf_counter() - started)
    return [statistics.median(times) for times in seconds]


def rate_row(name: str, size: int, ours: float, plain: float, goal: float, conditions: str) -> Row:
    """A row in GB/s, from the seconds that `size` bytes took on both sides."""
    value, baseline = size / ours / 1e9, size / plain / 1e9
    ratio = round(value / baseline, 3)
    return Row(
        "stream", name, float(f"{value:.4g}"), float(f"{baseline:.4g}"), ratio, goal, "GB/s", conditions
    )


def bare_get(client: StoreClient, samples: Sequence[StoredSample]) -> Callable[[], None]:
    """A loop of nothing but `get_into`, into one registered buffer."""
    buffer = (ctypes.c_char * max(one.bytes for one in samples))()
    address = ctypes.addressof(buffer)
    check("register_buffer", "bare get", client.raw.register_buffer(address, len(buffer)))

    def loop() -> None:
        for one in samples:
            if client.raw.get_into(one.key, address, one.bytes) != one.bytes:
                raise RuntimeError(f"get_into of {one.key} failed")
        _ = buffer  # keeps the memory

    return loop


def rows(folder: Path) -> list[Row]:
    """What `make bench` prints."""
    return consume_rows(folder)


def consume_rows(
    folder: Path, repetitions: int = 15, sizes_mib: Sequence[int] = SIZES_MIB, turn_bytes: int = _BYTES_A_TURN
) -> list[Row]:
    """One row for each object size.

    Args:
        folder: For the store's log.
        turn_bytes: Bytes that one repetition of one side reads, at least one object.
    """
    found = []
    for size in sizes_mib:
        one = sample_of("bench-consume", size * MIB)
        with stored([one], folder) as client:
            found.append(_row(client, [one] * max(1, turn_bytes // one.bytes), size, repetitions))
    return found


def _row(client: StoreClient, reads: Sequence[StoredSample], size_mib: int, repetitions: int) -> Row:
    def ours() -> None:
        for one in reads:
            check_seal(client.get(one.key, one.bytes))

    took, plain = interleaved((ours, bare_get(client, reads)), repetitions)
    total = sum(one.bytes for one in reads)
    conditions = (
        f"{len(reads)} reads of {size_mib} MiB from another process over tcp, seal "
        f"(xxh3-64) included; baseline: bare get_into; at least {GOAL}; medians of {repetitions} in turns; "
        f"{cpus()}"
    )
    return rate_row(f"consume {size_mib} MiB", total, took, plain, GOAL, conditions)
