"""Waiting for a server that everybody needs: one probe for all who wait, and a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

from tasks.errors import RetrainError
from tasks.stream.asking import ServerUnreachable
from tasks.stream.backoff import BackOff
from tasks.stream.reasons import STORE_DOWN
from tasks.stream.sample import SampleRejected


class Outage:
    """The down times of one server.

    Args:
        is_up: Asks it; must answer within a few seconds.
        limit_s: Longest down time that is waited for, seconds.
        lost: Makes the error for a down time that was longer.
        on_wait: Called with the seconds so far before each pause.
        pauses: Time between two probes.

    Attributes:
        count: Down times seen.
        seconds: Their length in all.
    """

    def __init__(
        self,
        is_up: Callable[[], Awaitable[bool]],
        limit_s: float,
        lost: Callable[[float], RetrainError],
        on_wait: Callable[[float], None],
        pauses: BackOff,
    ):
        self._is_up = is_up
        self._limit_s = limit_s
        self._lost = lost
        self._on_wait = on_wait
        self._pauses = pauses
        self._turn = asyncio.Lock()
        self._ended = float("-inf")
        self.count = 0
        self.seconds = 0.0

    async def over(self) -> bool:
        """Return once the server is up: True if it was down since this was called.

        Raises:
            RetrainError: It stayed down for too long.
        """
        asked = time.monotonic()
        async with self._turn:
            if self._ended >= asked:
                return True  # somebody else waited for its return meanwhile
            if await self._is_up():
                return False
            self.count += 1
            try:
                await self._wait(asked)
            finally:
                self._ended = time.monotonic()
                self.seconds += self._ended - asked
            return True

    async def _wait(self, since: float) -> None:
        probes = 0
        while True:
            waited = time.monotonic() - since
            if waited >= self._limit_s:
                raise self._lost(waited)
            probes += 1
            self._on_wait(waited)
            await asyncio.sleep(min(self._pauses.wait_s(probes), self._limit_s - waited))
            if await self._is_up():
                return


async def was_outage(error: SampleRejected, servers: Mapping[str, Outage], store: Outage) -> bool:
    """Whether an attempt failed because a server or the store was down; returns once it is up again.

    Args:
        servers: Base URL of each server that is asked -> its down times.
        store: Down times of the store's master.
    """
    if isinstance(error, ServerUnreachable):
        return await servers[error.url].over()
    return error.reason == STORE_DOWN and await store.over()
