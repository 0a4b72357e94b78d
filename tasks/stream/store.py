"""Reading side of the store: a typed wrapper of Mooncake's client.

Only this package imports mooncake. Every negative return code becomes a `StoreError` with its cause.
"""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

from tasks.errors import StoreError
from tasks.stream.codes import LEASE_EXPIRED, MASTER_AWAY, OBJECT_MISSING, STORE_FULL, cause_of
from tasks.stream.reasons import StoreDown

ERROR_SUFFIX = ":error"
"""A writer that cannot store a sample stores a small JSON object under the key plus this."""
_CONNECT_TIMEOUT_S = 5.0
_LEASE_TRIES = 3
_GRANULE_BYTES = 1 << 20
_CORES_A_TRANSFER = 2
"""Mooncake's client spins for as long as a transfer lasts; a thread of its own does the work meanwhile."""
_HANDED_ON_BYTES = 8 << 20
"""From this size on a thread that gives way to others spins; handing on less costs more than it saves."""
_GIVES_WAY = 10
"""Added to that thread's nice value: about a tenth of a core where all are busy."""


class ObjectMissing(StoreError):
    """The object is not in the store (any more)."""


class WrongSize(StoreError):
    """The object's size is not the one announced."""


class LeaseExpired(StoreError):
    """The read ended after its lease, again and again; the bytes may be another object's."""


def check(operation: str, key: str, code: int) -> int:
    """Return `code` if it is not negative.

    Raises:
        ObjectMissing, LeaseExpired, StoreDown, StoreError: By the code's cause.
    """
    if code >= 0:
        return code
    kinds = {OBJECT_MISSING: ObjectMissing, LEASE_EXPIRED: LeaseExpired, MASTER_AWAY: StoreDown}
    kind = kinds.get(code, StoreError)
    hint = {
        STORE_FULL: "lower stream.in_flight_bytes or raise store.segment_bytes",
        MASTER_AWAY: "see the log of the store's master; is it alive, and store.host right?",
    }.get(code, "see the log of the store's master")
    raise kind(f"{operation} of '{key}' answered {code}: {cause_of(code)}", where="store", hint=hint)


def _require_listening(master: str) -> None:
    """Say at once what Mooncake's client would say after a minute and a half.

    Raises:
        StoreError: Nothing accepts connections there.
    """
    host, _, port = master.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        raise StoreError(
            f"the store's master at '{master}' cannot be reached: {error}",
            where="store",
            hint="is mooncake_master running there, and store.host reachable from this node?",
        ) from None


class StoreClient:
    """A client without a segment of its own: reads, removes, looks. Usable from several threads.

    No more transfers run at once than half of the cores: on two cores a second one would take from the first
    what it waits for. Large objects are waited for on threads of low priority: who works has the cores.

    Args:
        master: `host:port` of the master.
        host: Address that this client gives as its own.
        protocol: `tcp` or `rdma`.
        device: RDMA devices, comma separated.
        local_buffer_bytes: Transfer buffer of the client.
        segment_bytes: Memory lent to the store; only a writer without a server of its own lends any.

    Attributes:
        lease_retries: Reads that outlasted their lease and were repeated.

    Raises:
        StoreError: The master cannot be reached.
    """

    def __init__(
        self,
        master: str,
        *,
        host: str = "127.0.0.1",
        protocol: str = "tcp",
        device: str = "",
        local_buffer_bytes: int = 64 * 2**20,
        segment_bytes: int = 0,
    ):
        from mooncake.store import MooncakeDistributedStore, ReplicateConfig

        _require_listening(master)
        self._master = master
        self.lease_retries = 0
        self.raw: Any = MooncakeDistributedStore()
        self._threads = threading.local()
        at_once = max(1, len(os.sched_getaffinity(0)) // _CORES_A_TRANSFER)
        self._transfers = threading.Semaphore(at_once)
        # On Linux `nice` counts for the calling thread alone.
        self._spinning = ThreadPoolExecutor(at_once, "transfer", initializer=os.nice, initargs=(_GIVES_WAY,))
        self._registered: list[Any] = []
        code = self.raw.setup(
            host, "P2PHANDSHAKE", segment_bytes, local_buffer_bytes, protocol, device, master
        )
        if code != 0:
            raise StoreError(
                f"the store's master at {master} cannot be used: setup answered {code}",
                where="store",
                hint="is mooncake_master running there, and store.host reachable from this node?",
            )
        self._pinned = ReplicateConfig()
        self._pinned.with_hard_pin = True

    def __enter__(self) -> StoreClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def put(self, key: str, value: bytes) -> None:
        """Put a small object, pinned.

        Raises:
            StoreError: The key exists already, or the store refused.
        """
        if self.exists(key):
            raise StoreError(f"'{key}' is already in the store", where="store")
        check("put", key, self.raw.put(key, value, self._pinned))

    def is_up(self) -> bool:
        """Whether the master answers."""
        try:
            _require_listening(self._master)
        except StoreError:
            return False
        return int(self.raw.health_check()) == 0

    def exists(self, key: str) -> bool:
        return check("is_exist", key, self.raw.is_exist(key)) == 1

    def size(self, key: str) -> int:
        """Size of an object, bytes."""
        return check("get_size", key, self.raw.get_size(key))

    def get(self, key: str, expected_bytes: int | None = None) -> memoryview:
        """Read an object; the view is this thread's buffer and valid until the thread's next read.

        Where the size is known, nothing but the read itself is asked of the master. A lease that expires
        during the read is looked up again; no partial read is ever returned.

        Raises:
            ObjectMissing: It is gone.
            LeaseExpired: It stayed too slow to read.
            WrongSize: Its size differs from `expected_bytes`.
            StoreError: Another code.
        """
        for attempt in range(_LEASE_TRIES):
            size = self.size(key) if expected_bytes is None else expected_bytes
            buffer = self._buffer(size)
            code = self._transfer(key, ctypes.addressof(buffer), size)
            if code == size:
                return memoryview(buffer).cast("B")[:size]
            if code == LEASE_EXPIRED and attempt + 1 < _LEASE_TRIES:
                self.lease_retries += 1
                continue
            if code not in (OBJECT_MISSING, LEASE_EXPIRED, MASTER_AWAY):
                self._refuse_wrong_size(key, expected_bytes)
            check("get", key, code)
            raise StoreError(f"get of '{key}' returned {code} of {size} bytes", where="store")
        raise AssertionError("unreachable")

    def _transfer(self, key: str, address: int, size: int) -> int:
        """Mooncake's answer: the bytes read, or a negative code."""
        with self._transfers:
            if size < _HANDED_ON_BYTES:
                return int(self.raw.get_into(key, address, size))
            return int(self._spinning.submit(self.raw.get_into, key, address, size).result())

    def _refuse_wrong_size(self, key: str, expected_bytes: int | None) -> None:
        """Tell a wrong size from another fault of a read; only now is the size asked for.

        Raises:
            WrongSize: With both sizes.
        """
        size = self.size(key)
        if expected_bytes is not None and size != expected_bytes:
            raise WrongSize(f"'{key}' has {size} bytes, its manifest says {expected_bytes}", where="store")

    def remove(self, key: str) -> bool:
        """Remove an object even while it is leased; False if it was not there."""
        code = self.raw.remove(key, True)
        if code == OBJECT_MISSING:
            return False
        check("remove", key, code)
        return True

    def remove_matching(self, regex: str) -> int:
        """Remove every object whose key matches; return how many there were."""
        return check("remove_by_regex", regex, int(self.raw.remove_by_regex(regex, True)))

    def close(self) -> None:
        self._spinning.shutdown()
        self.raw.close()

    def _buffer(self, size: int) -> Any:
        """This thread's registered buffer, grown to `size` bytes."""
        buffer = getattr(self._threads, "buffer", None)
        if buffer is not None and len(buffer) >= size:
            return buffer
        if buffer is not None:
            self.raw.unregister_buffer(ctypes.addressof(buffer))
            self._registered.remove(buffer)
        capacity = -(-max(size, 1) // _GRANULE_BYTES) * _GRANULE_BYTES
        buffer = (ctypes.c_char * capacity)()
        check("register_buffer", "read buffer", self.raw.register_buffer(ctypes.addressof(buffer), capacity))
        self._threads.buffer = buffer
        # A thread may end before the client: memory that is still registered must not be given to another.
        self._registered.append(buffer)
        return buffer
