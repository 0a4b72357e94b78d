"""A small pinned object that is given up, so that an error marker finds a place in a full store.

Its key begins with `KEY_PREFIX`, not with a run's request ids: it belongs to the writing server, not to
a run, so the sweep of a run (`capture.key_pattern`) leaves it alone, also at a server that many runs
use one after the other. It goes with the server: closing removes it, and the objects of a client that
died vanish with its segment.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from typing import Any

from tasks.stream.codes import STORE_FULL

KEY_PREFIX = "retrain-dspark-reserve-"
RESERVE_BYTES = 64 * 1024
"""Room for a dozen error markers."""
_STEPS = 8


def largest_object(segment_bytes: int) -> int:
    """Bytes of the largest object that fits into an empty segment beside the reserve.

    Mooncake's allocator looks for space in classes of size, eight for each power of two: of what is free
    it surely finds only what an eighth step holds, 60 MiB in a segment of 64.
    """
    free = max(segment_bytes - RESERVE_BYTES, 0)
    step = max((1 << free.bit_length()) // (2 * _STEPS), 1)
    return free // step * step


class Reserve:
    """Holds `RESERVE_BYTES` of the store until a marker needs them. Usable from several threads.

    Args:
        store: A `MooncakeDistributedStore` that is set up.
        config: `ReplicateConfig` with a hard pin.
    """

    def __init__(self, store: Any, config: Any):
        self.key = f"{KEY_PREFIX}{secrets.token_hex(8)}"
        self._store = store
        self._config = config
        self._lock = threading.Lock()
        self._held = False

    @property
    def held(self) -> bool:
        return self._held

    def take(self) -> None:
        """Take the space if it is not held and there is some; never waits."""
        if self._held or not self._lock.acquire(blocking=False):
            return
        try:
            if not self._held:
                self._held = self._store.put(self.key, bytes(RESERVE_BYTES), self._config) == 0
        finally:
            self._lock.release()

    def recheck(self) -> None:
        """Notice that the object is gone: a master that starts anew has forgotten it. Never waits."""
        if not self._held or not self._lock.acquire(blocking=False):
            return
        try:
            self._held = self._held and self._store.is_exist(self.key) != 0
        finally:
            self._lock.release()

    def let_pass(self) -> None:
        """Wait while a marker is being put into the space that was freed for it."""
        if self._lock.locked():
            with self._lock:
                pass

    def spend(self, put: Callable[[], int]) -> int:
        """Free the space and call `put` before another thread of this process can use it.

        Returns:
            The code of `put`; -200 without a call if there was nothing to free.
        """
        with self._lock:
            if not self._held:
                return STORE_FULL
            self._store.remove(self.key, True)
            self._held = False
            return put()

    def drop(self) -> None:
        """Remove the object; for the end of the writer."""
        with self._lock:
            if self._held:
                self._store.remove(self.key, True)
                self._held = False
