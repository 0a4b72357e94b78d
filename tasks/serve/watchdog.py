"""Follows progress, not only health: an engine can hang behind status endpoints that answer."""

from __future__ import annotations

import time

from tasks.errors import ServiceError
from tasks.processes.launcher import Handle
from tasks.serve.log_causes import service_error
from tasks.serve.vllm_http import Server

_CHECK_EVERY_S = 2.0
_OPEN = ("vllm:num_requests_running", "vllm:num_requests_waiting")
_DONE = ("vllm:generation_tokens_total", "vllm:prompt_tokens_total")


def counter_sum(exposition: str, name: str) -> float:
    """Sum of a metric over its labels in Prometheus text; 0 if it is absent."""
    total = 0.0
    for line in exposition.splitlines():
        if line.startswith(name) and line[len(name) : len(name) + 1] in ("{", " "):
            total += float(line.rsplit(" ", 1)[1])
    return total


class ProgressWatchdog:
    """Raises when requests are open and the engine computes no token for `timeout_s`.

    Call `check()` as often as you like, from one thread; it asks the server every two seconds at most.
    From asyncio: `await asyncio.to_thread(watchdog.check)`.

    Args:
        server: The server to follow.
        timeout_s: `serve.progress_timeout_s`.
        handle: Its process, if it is ours: its death is then noticed at once.
        expects_requests: Count as stuck even when the server says that nothing is open, for callers that
            know that their own requests are.
    """

    def __init__(
        self, server: Server, timeout_s: float, handle: Handle | None = None, expects_requests: bool = False
    ) -> None:
        self._server = server
        self._timeout_s = timeout_s
        self._handle = handle
        self._expects_requests = expects_requests
        self._tokens = -1.0
        self._moved = time.monotonic()
        self._asked = float("-inf")

    def check(self) -> None:
        """Raises ServiceError when the engine died or makes no progress."""
        now = time.monotonic()
        if self._handle is not None and (status := self._handle.poll()) is not None:
            raise service_error(
                self._handle.spec.name,
                f"ended with status {status} while it was needed",
                str(self._handle.log),
                self._handle.tail(400),
            )
        if now - self._asked < min(_CHECK_EVERY_S, self._timeout_s / 4):
            return
        self._asked = now
        if self._moves():
            self._moved = now
        elif now - self._moved > self._timeout_s:
            raise self._stuck(now - self._moved)

    def _moves(self) -> bool:
        try:
            text = self._server.metrics()
        except ServiceError:
            return False  # a server under load may miss one; silence for the whole limit is the error
        tokens = sum(counter_sum(text, name) for name in _DONE)
        idle = not self._expects_requests and not any(counter_sum(text, name) for name in _OPEN)
        moved = tokens != self._tokens
        self._tokens = tokens
        return moved or idle

    def _stuck(self, seconds: float) -> ServiceError:
        handle = self._handle
        return ServiceError(
            f"engine not progressing: requests are open and no token was computed for {seconds:.0f} s",
            where=self._server.url + (f"; log: {handle.log}" if handle else ""),
            hint="see the server's log; raise serve.progress_timeout_s if the machine is only slow",
            log_tail=handle.tail() if handle else (),
        )
