"""Payloads of the round trip, and the time that calls with them take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import xxhash

from tasks.stream.roundtrip_settings import Operation, Series, Times

_WORD_BYTES = 4
_MULTIPLIER = 2654435761 - 2**32  # Knuth's multiplicative hash, as a signed 32-bit number


@dataclass
class Rounds:
    """Calls of one series."""

    milliseconds: list[list[float]] = field(default_factory=list)
    """Per round, of each call that succeeded."""
    wall_s: list[float] = field(default_factory=list)

    def add(self, wall_s: float, milliseconds: list[float]) -> None:
        self.wall_s.append(wall_s)
        self.milliseconds.append(milliseconds)

    def times(self, operation: Operation, number: int, series: Series) -> Times:
        """Times of series `number` without the warm-ups; of few rounds, at most a third are warm-ups."""
        skip = min(series.warmups, len(self.wall_s) // 3)
        kept = [value for values in self.milliseconds[skip:] for value in values]
        wall_s = sum(self.wall_s[skip:])
        rate = len(kept) * series.size_bytes / 1e9 / wall_s if kept and wall_s else None
        return Times(
            series=number,
            operation=operation,
            succeeded=sum(map(len, self.milliseconds)),
            milliseconds=tuple(kept),
            gb_per_s=rate,
        )


def payload(slot: int, size_bytes: int) -> Any:
    """A bfloat16 tensor of `size_bytes` whose 32-bit words all differ, so that swapped pages are noticed."""
    import torch

    words = torch.arange(size_bytes // _WORD_BYTES, dtype=torch.int32)
    return words.mul_(_MULTIPLIER).add_(slot).view(torch.bfloat16)


def stamp(tensor: Any, key: str) -> None:
    """Make the payload this key's own."""
    import torch

    mark = torch.frombuffer(bytearray(xxhash.xxh3_128_digest(key.encode())), dtype=torch.uint8)
    tensor.view(torch.uint8)[: len(mark)] = mark


def digest(tensor: Any) -> str:
    """XXH3-128 of the tensor's bytes."""
    import torch

    return xxhash.xxh3_128_hexdigest(tensor.contiguous().view(torch.uint8).numpy())


def timed(
    threads: ThreadPoolExecutor, call: Callable[..., Any], *arguments: Iterable[Any]
) -> tuple[float, list[tuple[Any, float]]]:
    """Wall seconds of all calls together; and each call's answer and milliseconds."""

    def one(*values: Any) -> tuple[Any, float]:
        started = time.perf_counter()
        answer = call(*values)
        return answer, 1000 * (time.perf_counter() - started)

    started = time.perf_counter()
    calls = list(threads.map(one, *arguments))
    return time.perf_counter() - started, calls
