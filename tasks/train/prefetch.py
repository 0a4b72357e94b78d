"""Batches read ahead by one thread while the step before them is computed, within a budget of bytes."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Made = TypeVar("Made")


class Prefetch(Generic[Key, Made]):
    """Makes batches ahead of time; what it returns is what `make` returns, in the caller's order.

    Args:
        make: Reads a batch; called in one other thread, never twice at a time.
        size: Bytes that a batch will take, known before it is read.
        budget_bytes: Bytes of batches that are read ahead. The next one is read whatever its size; 0 reads
            none ahead.

    Attributes:
        waited_s: Seconds that `take` kept its caller waiting, in all.
    """

    def __init__(self, make: Callable[[Key], Made], size: Callable[[Key], int], budget_bytes: int):
        self._make = make
        self._size = size
        self._budget = budget_bytes
        self._thread: ThreadPoolExecutor | None = None
        self._coming: dict[Key, Future[Made]] = {}
        self.waited_s = 0.0

    def take(self, key: Key, following: Iterable[Key]) -> Made:
        """The batch `key`; then those of `following`, in their order, are read ahead as far as they fit.

        What was read ahead and is in neither is forgotten: the caller went elsewhere.
        """
        started = time.perf_counter()
        coming = self._coming.pop(key, None)
        if coming is None and self._thread is not None:
            coming = self._thread.submit(self._make, key)
        batch = self._make(key) if coming is None else coming.result()
        self.waited_s += time.perf_counter() - started
        if self._budget > 0:
            self._read_ahead(following)
        return batch

    def _read_ahead(self, following: Iterable[Key]) -> None:
        wanted: list[Key] = []
        used = 0
        for key in following:
            used += self._size(key)
            if wanted and used > self._budget:
                break
            wanted.append(key)
        for key in [known for known in self._coming if known not in wanted]:
            self._coming.pop(key).cancel()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="read-ahead")
        for key in wanted:
            if key not in self._coming:
                self._coming[key] = self._thread.submit(self._make, key)

    def close(self) -> None:
        """Forget what was read ahead and end the thread; `take` can be called again."""
        for coming in self._coming.values():
            coming.cancel()
        self._coming.clear()
        if self._thread is not None:
            self._thread.shutdown(wait=True)
            self._thread = None
