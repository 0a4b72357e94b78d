"""Bytes in flight: what requests may leave in the store before the reader has taken it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tasks.errors import UsageError


def readers_for(local_buffer_bytes: int, sample_bytes: int, most: int) -> int:
    """Samples that a client may read at once: their buffers together stay within its transfer buffer."""
    return max(1, min(most, local_buffer_bytes // max(sample_bytes, 1)))


class ByteBudget:
    """Lets requests start while their samples fit, first come first served.

    Args:
        limit_bytes: Most bytes reserved at once.

    Attributes:
        in_flight: Bytes reserved now.
        peak: Most bytes reserved at once so far.
    """

    def __init__(self, limit_bytes: int):
        self.limit_bytes = limit_bytes
        self.in_flight = 0
        self.peak = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def reserve(self, amount: int) -> AsyncIterator[None]:
        """Hold `amount` bytes; waits until they fit.

        Raises:
            UsageError: One sample alone is larger than the budget.
        """
        if amount > self.limit_bytes:
            raise UsageError(
                f"one sample may need {amount:,} bytes, more than the {self.limit_bytes:,} allowed in flight",
                where="stream.in_flight_bytes",
                hint="raise it (and store.segment_bytes), or lower stream.max_new_tokens",
            )
        await self._take(amount)
        try:
            yield
        finally:
            self.in_flight -= amount
            self._wake()

    async def _take(self, amount: int) -> None:
        if self._waiting or self.in_flight + amount > self.limit_bytes:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((amount, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self.in_flight -= amount
                self._wake()
                raise
        else:
            self._add(amount)

    def _add(self, amount: int) -> None:
        self.in_flight += amount
        self.peak = max(self.peak, self.in_flight)

    def _wake(self) -> None:
        while self._waiting:
            amount, turn = self._waiting[0]
            if not turn.done():
                if self.in_flight + amount > self.limit_bytes:
                    return
                self._add(amount)
                turn.set_result(None)
            self._waiting.popleft()
