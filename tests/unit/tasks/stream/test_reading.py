"""What becomes of reads that nobody waits for any more."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from typing import Any, cast

import pytest

from tasks.stream.reading import Log, SampleReader
from tasks.stream.sample import Answer, Request, Shape
from tasks.stream.store import ObjectMissing, StoreClient
from tasks.stream.sweeping import Sweeper


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
