"""Writing side of the store: sealed, pinned, and patient when there is no space.

Mooncake evicts unpinned objects that nobody has read yet and still answers 0 to the put; and it answers
0 to a put of a key that exists without storing anything. Both would lose samples silently.
"""

from __future__ import annotations

import ctypes
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import xxhash

from tasks.errors import StoreError
from tasks.stream.checksum import SEAL_BYTES, seal_of
from tasks.stream.codes import STORE_FULL, cause_of
from tasks.stream.put_counters import PutCounters
from tasks.stream.reserve import Reserve, largest_object

FIRST_WAIT_S = 0.01
LONGEST_WAIT_S = 0.5
MARKER_TIMEOUT_S = 5.0
"""Longest wait for the space of an error marker; its reader does not depend on it."""

Part = tuple[int, int]
"""Address and size of bytes of a payload."""
Reason = Literal["store_full", "too_large", "key_exists", "closing", "store_code"]


class PutRefused(StoreError):
    """A put that stored nothing.

    Args:
        reason: A short word for the cause, which an error marker carries to the reader.
        waits: How often the put had waited for space.
    """

    reason: Reason = "store_code"
    waits: int = 0

    @classmethod
    def because(cls, reason: Reason, what: str, *, where: str, hint: str = "", waits: int = 0) -> PutRefused:
        error = cls(what, where=where, hint=hint)
        error.reason, error.waits = reason, waits
        return error


class PinnedStore:
    """A `MooncakeDistributedStore` whose puts are hard-pinned and wait for space.

    Everything that is not a put goes to the store as it is, so upstream's writer can use it.

    Args:
        store: A store that is set up.
        put_timeout_s: Longest wait of one put for space.
        segment_bytes: Size of the segment; an object that can never fit beside the reserve is refused.
        unique_keys: The caller makes each key once only, so a sample's key is not looked up before
            its put. That look-up is a call to the master, a fifth of the time of a put of 1 MiB.
    """

    def __init__(self, store: Any, *, put_timeout_s: float, segment_bytes: int, unique_keys: bool = False):
        from mooncake.store import ReplicateConfig

        self._store = store
        self._put_timeout_s = put_timeout_s
        self._segment_bytes = segment_bytes
        self._largest_bytes = largest_object(segment_bytes)
        self._unique_keys = unique_keys
        self._closing = threading.Event()
        self._config = ReplicateConfig()
        self._config.with_hard_pin = True
        self._config.preferred_segment = store.get_hostname()
        self.counters = PutCounters()
        self.reserve = Reserve(store, self._config)
        self.reserve.take()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def refuse_too_large(self, size: int) -> None:
        """Refuse what no waiting can make fit, before anything is done for it.

        Raises:
            PutRefused: `size` bytes are more than an empty segment has room for.
        """
        if size > self._largest_bytes:
            raise PutRefused.because(
                "too_large",
                f"one sample has {size:,} bytes; the largest that a segment of {self._segment_bytes:,} bytes "
                f"holds has {self._largest_bytes:,}",
                where="store.segment_bytes",
                hint="raise store.segment_bytes, or lower stream.max_new_tokens",
            )

    def put_from(self, key: str, address: int, size: int) -> int:
        """Seal `size - 64` bytes of payload at `address` and put all `size` bytes, pinned.

        Returns:
            0.

        Raises:
            PutRefused: The key exists, the object cannot fit, no space was made in time, or another code.
        """
        end = address + size - SEAL_BYTES

        def put(sealed: bytes) -> int:
            ctypes.memmove(end, sealed, SEAL_BYTES)
            return int(self._store.put_from(key, address, size, self._config))

        return self._put_sample(key, [(address, size - SEAL_BYTES)], size, put)

    def put_in_place(self, key: str, parts: Sequence[Part]) -> int:
        """Put a payload from where its parts lie, one behind the other, and its seal; see `put_from`.

        Saves the copy into a staging buffer. Only for `tcp`: `rdma` reads registered memory only.
        """
        room = ctypes.create_string_buffer(SEAL_BYTES)
        addresses = [*(address for address, _ in parts), ctypes.addressof(room)]
        sizes = [*(size for _, size in parts), SEAL_BYTES]

        def put(sealed: bytes) -> int:
            ctypes.memmove(room, sealed, SEAL_BYTES)
            codes = self._store.batch_put_from_multi_buffers([key], [addresses], [sizes], self._config)
            return int(codes[0])

        return self._put_sample(key, parts, sum(sizes), put)

    def _put_sample(self, key: str, parts: Sequence[Part], size: int, put: Callable[[bytes], int]) -> int:
        """Digest the payload once, then put it, sealed anew for each try."""
        self.refuse_too_large(size)
        digest = _digest(parts)
        if not self._unique_keys:
            self._refuse_existing(key)

        def sealed_put(waits: int) -> int:
            self.reserve.take()
            self.reserve.let_pass()
            return put(seal_of(size - SEAL_BYTES, digest, waits))

        try:
            self._until_space(key, sealed_put, self._put_timeout_s)
        except PutRefused:
            self.counters.add("puts_refused")
            raise
        self.counters.add("puts")
        self.counters.add("put_bytes", size)
        return 0

    def put(self, key: str, value: bytes) -> int:
        """Put a small object (an error marker), pinned; where there is no space, into the reserve's.

        Returns:
            0.

        Raises:
            PutRefused: The key exists, no space was made in time, or another code.
        """

        def put(waits: int) -> int:
            return int(self._store.put(key, value, self._config))

        def put_or_spend(waits: int) -> int:
            code = put(waits)
            if code != STORE_FULL or not self.reserve.held:
                return code
            self.counters.add("reserves_spent")
            return self.reserve.spend(lambda: put(waits))

        try:
            self._refuse_existing(key)
            self._until_space(key, put_or_spend, MARKER_TIMEOUT_S)
        except PutRefused:
            self.counters.add("markers_lost")
            raise
        self.counters.add("markers")
        return 0

    def end_waits(self) -> None:
        """Let puts that wait for space give up, and later ones not begin to wait."""
        self._closing.set()

    def close(self) -> None:
        """Give the reserve back and close the store. No put may be under way."""
        self._closing.set()
        self.reserve.drop()
        self._store.close()

    def _refuse_existing(self, key: str) -> None:
        if self._store.is_exist(key) == 1:
            raise PutRefused.because(
                "key_exists",
                f"'{key}' is already in the store; a put would answer 0 and store nothing",
                where="store",
                hint="request ids must be unique: do not share one run id between two captures",
            )

    def _until_space(self, key: str, put: Callable[[int], int], timeout_s: float) -> None:
        started = time.monotonic()
        pause_s = FIRST_WAIT_S
        waits = 0
        while (code := put(waits)) == STORE_FULL:
            waited_s = time.monotonic() - started
            if waited_s >= timeout_s:
                raise _no_space(key, waited_s, waits)
            self.counters.add("put_waits")
            waits += 1
            paused_at = time.monotonic()
            if self._closing.wait(pause_s * random.uniform(0.75, 1.25)):
                raise PutRefused.because(
                    "closing", f"the server ends while '{key}' waits for space", where="store", waits=waits
                )
            self.counters.add("put_wait_seconds", time.monotonic() - paused_at)
            pause_s = min(2 * pause_s, LONGEST_WAIT_S)
        if code != 0:
            raise PutRefused.because(
                "store_code", f"put of '{key}' answered {code}: {cause_of(code)}", where="store", waits=waits
            )


def _digest(parts: Sequence[Part]) -> int:
    """XXH3-64 of `parts`, one behind the other."""
    digest = xxhash.xxh3_64()
    for address, size in parts:
        digest.update(memoryview((ctypes.c_char * size).from_address(address)).cast("B"))
    return digest.intdigest()


def _no_space(key: str, waited_s: float, waits: int) -> PutRefused:
    return PutRefused.because(
        "store_full",
        f"no space for '{key}' within {waited_s:.0f} s ({waits} waits)",
        where="store.segment_bytes",
        hint="lower stream.in_flight_bytes or raise store.segment_bytes; is the reader alive?",
        waits=waits,
    )
