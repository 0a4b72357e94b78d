"""Reads side by side with waits for the disk, and what becomes of those that nobody waits for any more."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch

from tasks.stream.checksum import SEAL_BYTES, seal
from tasks.stream.reading import COMPLETERS, MOST_READERS, Log, SampleReader
from tasks.stream.sample import Answer, Request, Shape
from tasks.stream.store import ObjectMissing, StoreClient
from tasks.stream.sweeping import Sweeper

WIDTH = 8


class SlowStore:
    """Reads end when they are let go, with an error: the sample was removed meanwhile."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()

    def exists(self, key: str) -> bool:
        return not key.endswith(".error")

    def get(self, key: str, size: int) -> Any:
        self.begun.set()
        assert self.go.wait(60)
        raise ObjectMissing("the object is not in the store")


@pytest.mark.parametrize("way", ["take", "look_at"])
def test_a_read_that_fails_after_its_attempt_was_cancelled_prints_nothing(
    caplog: pytest.LogCaptureFixture, way: str
) -> None:
    store = SlowStore()
    answer = Answer((7, 8), "stop", {"handle": "key", "metadata": {"total_aligned_bytes": 64}})
    request = Request(0, "p-0", "qa", "train", (1, 2), 8, 0.0, 1.0, 0)

    async def scenario(reader: SampleReader) -> None:
        deadline = asyncio.get_running_loop().time() + 60
        attempt = asyncio.create_task(getattr(reader, way)(request, answer, deadline))
        while not store.begun.is_set() and not attempt.done():
            await asyncio.sleep(0.001)
        assert store.begun.is_set()
        attempt.cancel()
        await asyncio.gather(attempt, return_exceptions=True)
        store.go.set()
        await asyncio.to_thread(reader.close)
        await asyncio.sleep(0)

    class NoLog:
        waits, waiting = 0, False

    shape = Shape(1, 1, "float32")
    reader = SampleReader(cast(StoreClient, store), cast(Sweeper, None), cast(Log, NoLog()), shape, 60.0)
    with caplog.at_level(logging.ERROR, "asyncio"):
        asyncio.run(scenario(reader))
        gc.collect()
    assert not caplog.records


class Full:
    """A store that holds every sample."""

    def exists(self, key: str) -> bool:
        return True

    def get(self, key: str, size: int) -> memoryview:
        states = torch.arange(2 * WIDTH, dtype=torch.float32)
        payload = bytes(torch.tensor([1, 2]).view(torch.uint8)) + bytes(states.view(torch.uint8))
        return memoryview(bytearray(payload + seal(payload)))


class SlowDisk:
    """A log whose disk takes nothing before it is let go."""

    waits, waiting = 0, False

    def __init__(self) -> None:
        self.go = threading.Event()
        self.written: list[int] = []
        self.completed: list[int] = []

    def write(self, **sample: Any) -> Any:
        self.written.append(sample["i"])
        return sample["i"]

    def complete(self, written: Any) -> Any:
        assert self.go.wait(60)
        self.completed.append(written)
        return written


def answered(number: int) -> tuple[Request, Answer]:
    specs = {
        "token_ids": {"shape": [2], "dtype": "torch.int64", "offset": 0},
        "hidden_states": {"shape": [2, 1, WIDTH], "dtype": "torch.float32", "offset": 16},
    }
    size = 16 + 8 * WIDTH + SEAL_BYTES
    manifest = {"handle": f"key-{number}", "tensors": specs, "metadata": {"total_aligned_bytes": size}}
    return Request(number, "p", "qa", "train", (1, 2), 1, 0.0, 1.0, 0), Answer((3,), "stop", manifest)


def reader_of(log: SlowDisk) -> SampleReader:
    store = cast(StoreClient, Full())
    return SampleReader(store, cast(Sweeper, None), cast(Log, log), Shape(1, WIDTH, "float32"), 60.0)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


def test_further_samples_are_read_while_some_wait_for_the_disk() -> None:
    log, count = SlowDisk(), MOST_READERS + 3

    async def scenario(reader: SampleReader) -> None:
        deadline = asyncio.get_running_loop().time() + 60
        takes = [asyncio.create_task(reader.take(*answered(n), deadline)) for n in range(count)]
        await _until(lambda: len(log.written) == count)
        assert not log.completed and not any(take.done() for take in takes)
        log.go.set()
        assert [await take for take in takes] == [(n, 0) for n in range(count)]

    reader = reader_of(log)
    asyncio.run(scenario(reader))
    reader.close()


def test_a_written_sample_is_completed_though_its_attempt_was_cancelled() -> None:
    """Also one whose completion has not begun: an open file and a claimed number would stay for good."""
    log, count = SlowDisk(), COMPLETERS + 2

    async def scenario(reader: SampleReader) -> None:
        deadline = asyncio.get_running_loop().time() + 60
        takes = [asyncio.create_task(reader.take(*answered(n), deadline)) for n in range(count)]
        await _until(lambda: len(log.written) == count)
        await asyncio.sleep(0.05)  # all wait for the disk by now
        for take in takes:
            take.cancel()
        await asyncio.gather(*takes, return_exceptions=True)
        log.go.set()
        await asyncio.to_thread(reader.close)

    asyncio.run(scenario(reader_of(log)))
    assert sorted(log.completed) == list(range(count))
