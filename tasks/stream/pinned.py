"""Writing side of the store: sealed, pinned, and patient when there is no space.

Mooncake evicts unpinned objects that nobody has read yet and still answers 0 to the put; and it answers
0 to a put of a key that exists without storing anything. Both would lose samples silently.
"""

from __future__ import annotations

import ctypes
import random
import time
from typing import Any

from tasks.errors import StoreError
from tasks.stream.checksum import SEAL_BYTES, seal
from tasks.stream.codes import STORE_FULL, cause_of

FIRST_WAIT_S = 0.01
LONGEST_WAIT_S = 0.5


class PinnedStore:
    """A `MooncakeDistributedStore` whose puts are hard-pinned and wait for space.

    Everything that is not a put goes to the store as it is, so upstream's writer can use it.

    Args:
        store: A store that is set up.
        put_timeout_s: Longest wait of one put for space.
        segment_bytes: Size of the segment; a larger object can never fit and is refused at once.
    """

    def __init__(self, store: Any, *, put_timeout_s: float, segment_bytes: int):
        from mooncake.store import ReplicateConfig

        self._store = store
        self._put_timeout_s = put_timeout_s
        self._segment_bytes = segment_bytes
        self._config = ReplicateConfig()
        self._config.with_hard_pin = True
        self._config.preferred_segment = store.get_hostname()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put_from(self, key: str, address: int, size: int) -> int:
        """Seal `size - 64` bytes of payload at `address` and put all `size` bytes, pinned.

        Returns:
            0.

        Raises:
            StoreError: The key exists, the object cannot fit, no space was made in time, or another code.
        """
        if size > self._segment_bytes:
            raise StoreError(
                f"one sample has {size:,} bytes and the store's segment only {self._segment_bytes:,}",
                where="store.segment_bytes",
                hint="raise store.segment_bytes, or lower stream.max_new_tokens",
            )
        self._refuse_existing(key)
        payload = (ctypes.c_char * (size - SEAL_BYTES)).from_address(address)
        view = memoryview(payload).cast("B")

        def put(waits: int) -> int:
            ctypes.memmove(address + size - SEAL_BYTES, seal(view, waits), SEAL_BYTES)
            return int(self._store.put_from(key, address, size, self._config))

        return self._until_space(key, put)

    def put(self, key: str, value: bytes) -> int:
        """Put a small object (an error marker), pinned; waits like `put_from`."""
        self._refuse_existing(key)
        return self._until_space(key, lambda _: int(self._store.put(key, value, self._config)))

    def _refuse_existing(self, key: str) -> None:
        if self._store.is_exist(key) == 1:
            raise StoreError(
                f"'{key}' is already in the store; a put would answer 0 and store nothing",
                where="store",
                hint="request ids must be unique: do not share one run id between two captures",
            )

    def _until_space(self, key: str, put: Any) -> int:
        deadline = time.monotonic() + self._put_timeout_s
        pause_s = FIRST_WAIT_S
        waits = 0
        while True:
            code = put(waits)
            if code == 0:
                return 0
            if code != STORE_FULL:
                raise StoreError(f"put of '{key}' answered {code}: {cause_of(code)}", where="store")
            if time.monotonic() >= deadline:
                raise StoreError(
                    f"no space for '{key}' within {self._put_timeout_s:.0f} s ({waits} tries)",
                    where="store.segment_bytes",
                    hint="lower stream.in_flight_bytes or raise store.segment_bytes; is the reader alive?",
                )
            waits += 1
            time.sleep(pause_s * random.uniform(0.75, 1.25))
            pause_s = min(2 * pause_s, LONGEST_WAIT_S)
