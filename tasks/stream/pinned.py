"""Writing side of the store: sealed, pinned, and patient when there is no space.

Mooncake evicts unpinned objects that nobody has read yet and still answers 0 to the put; and it answers
0 to a put of a key that exists without storing anything. Both would lose samples silently.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import xxhash

from profiles.streaming import MARKER_S
from tasks.stream.checksum import SEAL_BYTES, holds_payload, seal_of
from tasks.stream.codes import STORE_FULL, TRANSFER_FAILED
from tasks.stream.patience import Patience, PutRefused
from tasks.stream.put_counters import PutCounters
from tasks.stream.reserve import Reserve, largest_object

__all__ = ["PinnedStore", "PutRefused"]

Part = tuple[int, int]
"""Address and size of bytes of a payload."""


class PinnedStore:
    """A `MooncakeDistributedStore` whose puts are hard-pinned and wait for what goes away by itself.

    Everything that is not a put goes to the store as it is, so upstream's writer can use it.

    Args:
        store: A store that is set up.
        put_timeout_s: Longest wait of one put, for space or for a segment that takes it.
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
        self._config = ReplicateConfig()
        self._config.with_hard_pin = True
        self._config.preferred_segment = store.get_hostname()
        self.counters = PutCounters()
        self.reserve = Reserve(store, self._config)
        self._patience = Patience(self.counters, self._is_there, self.reserve.recheck)
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
            PutRefused: The key holds something else, the object cannot fit, what it waited for did not come
                in time, or another code.
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

        def sealed_put(waits: int) -> int:
            self.reserve.take()
            self.reserve.let_pass()
            return put(seal_of(size - SEAL_BYTES, digest, waits))

        def is_ours(stored: bytes) -> bool:
            return len(stored) == size and holds_payload(memoryview(stored), digest)

        try:
            self._put_once(key, sealed_put, self._put_timeout_s, is_ours, look_first=not self._unique_keys)
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
            PutRefused: The key holds something else, what it waited for did not come in time, or another
                code.
        """

        def put(waits: int) -> int:
            return int(self._store.put(key, value, self._config))

        def put_or_spend(waits: int) -> int:
            code = put(waits)
            if code not in (STORE_FULL, TRANSFER_FAILED) or not self.reserve.held:
                return code
            self.counters.add("reserves_spent")
            return self.reserve.spend(lambda: put(waits))

        try:
            self._put_once(key, put_or_spend, MARKER_S, lambda stored: stored == value)
        except PutRefused:
            self.counters.add("markers_lost")
            raise
        self.counters.add("markers")
        return 0

    def end_waits(self) -> None:
        """Let puts that wait give up, and later ones not begin to wait."""
        self._patience.end()

    def close(self) -> None:
        """Give the reserve back and close the store. No put may be under way."""
        self._patience.end()
        self.reserve.drop()
        self._store.close()

    def _is_there(self, key: str) -> bool:
        return bool(self._store.is_exist(key) == 1)

    def _put_once(
        self,
        key: str,
        put: Callable[[int], int],
        timeout_s: float,
        is_ours: Callable[[bytes], bool],
        look_first: bool = True,
    ) -> None:
        """Put under a key that must not hold anything else.

        Mooncake answers 0 or -705 to a put of a key that exists, by version, and stores nothing.

        Args:
            is_ours: Whether what the key holds already is what is put.

        Raises:
            PutRefused: It holds something else, or `Patience.put` says why nothing was stored.
        """
        exists = look_first and self._is_there(key)
        if not exists and self._patience.put(key, put, timeout_s):
            return
        if not is_ours(bytes(self._store.get(key))):
            raise PutRefused.because(
                "key_exists",
                f"'{key}' is already in the store and holds something else; nothing was put",
                where="store",
                hint="request ids must be unique: do not share one run id between two captures",
            )


def _digest(parts: Sequence[Part]) -> int:
    """XXH3-64 of `parts`, one behind the other."""
    digest = xxhash.xxh3_64()
    for address, size in parts:
        digest.update(memoryview((ctypes.c_char * size).from_address(address)).cast("B"))
    return digest.intdigest()
