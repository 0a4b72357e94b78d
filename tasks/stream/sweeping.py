"""Removing from the store what nobody will read: of requests that were given up, and at the end of a capture.

A request that was given up may still write its object. What the engine can confirm: vLLM 0.32 counts a
request as running or waiting until its last token, and holds its KV blocks until the connector's writer is
done; when neither is left, no writer is at work. While other requests run, nothing can be said of one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import httpx

from tasks.errors import ServiceError, StoreError
from tasks.serve.vllm_http import Server
from tasks.serve.watchdog import counter_sum
from tasks.stream.keys import key_pattern, ready_pattern, request_pattern
from tasks.stream.store import ERROR_SUFFIX, StoreClient

_POLL_S = 0.25
_AT_ONCE = 64
_HELD = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")


def engine_is_idle(server: Server) -> bool:
    """Whether no request runs and no writer holds a sample; a server that is gone writes nothing either."""
    try:
        text = server.metrics()
    except ServiceError as error:
        return not isinstance(error.__cause__, httpx.TimeoutException)  # too busy to answer is not gone
    return not any(counter_sum(text, name) for name in _HELD)


class Sweeper:
    """Removes objects of one run.

    Args:
        store: Their store.
        run_id: Whose objects.
        is_idle: Whether the engine confirms that it writes nothing any more.
        quiet_s: How long after that nothing may appear; longer than a writer's pause between two tries.

    Attributes:
        swept: Objects removed that nobody read.
        orphans: Requests that were given up and whose object has not been seen yet.
    """

    def __init__(self, store: StoreClient, run_id: str, is_idle: Callable[[], bool], quiet_s: float):
        self._store = store
        self._pattern = key_pattern(run_id)
        self._ready = ready_pattern(run_id)
        self._is_idle = is_idle
        self._quiet_s = quiet_s
        self._lock = threading.Lock()
        self.swept = 0
        self.orphans: dict[str, None] = {}

    def clear(self) -> None:
        """Remove what an earlier session of this run left; nothing of this one is there yet."""
        self._store.remove_matching(self._ready)
        self._count(self._store.remove_matching(self._pattern))

    def forget(self, request_id: str, handle: str | None) -> None:
        """Remove an attempt's object or error marker. If neither is there, it is looked for again later."""
        try:
            if handle and (self._store.remove(handle) or self._store.remove(handle + ERROR_SUFFIX)):
                return
            removed = self._store.remove_matching(request_pattern([request_id]))
        except StoreError:
            removed = 0  # the store is down: what it held is looked for when it is back
        self._count(removed)
        if not removed:
            with self._lock:
                self.orphans[request_id] = None

    def sweep_orphans(self) -> None:
        """Look again for the objects of the oldest given-up requests; each writes at most one."""
        with self._lock:
            oldest = list(self.orphans)[:_AT_ONCE]
        for request_id in oldest:
            removed = self._store.remove_matching(request_pattern([request_id]))
            with self._lock:
                # To the end, or gone: so every orphan has its turn.
                del self.orphans[request_id]
                if not removed:
                    self.orphans[request_id] = None
            self._count(removed)

    def finish(self, limit_s: float) -> bool:
        """Leave nothing of this run in the store.

        Args:
            limit_s: Longest wait for requests that were given up to write what they still will.

        Returns:
            Whether the engine confirmed that nothing more can come; without given-up requests nothing can.

        Raises:
            StoreError: Objects of the run still appear at the end of that time.
        """
        deadline = time.monotonic() + limit_s
        quiet_until: float | None = None
        while True:
            removed = self._store.remove_matching(self._pattern)
            self._count(removed)
            now = time.monotonic()
            if not removed and not self.orphans:
                return True
            if removed or not self._is_idle():
                quiet_until = None
            elif quiet_until is None:
                quiet_until = now + self._quiet_s
            elif now >= quiet_until:
                return True
            if now >= deadline:
                self._require_empty(removed, limit_s)
                return False
            time.sleep(_POLL_S)

    def _require_empty(self, removed: int, limit_s: float) -> None:
        if removed:
            raise StoreError(
                f"{removed} objects of this run were in the store {limit_s:.0f} s after its last request",
                where="store",
                hint="does another capture use the same run id? see the target's log; the next start of this "
                "run removes what is left",
            )

    def _count(self, removed: int) -> None:
        with self._lock:
            self.swept += removed
