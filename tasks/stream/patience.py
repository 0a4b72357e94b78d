"""Puts that wait for what goes away by itself: a full store, a segment that is dead or not mounted now."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from tasks.errors import StoreError
from tasks.stream.codes import MASTER_AWAY, OBJECT_EXISTS, STORE_FULL, TRANSFER_FAILED, cause_of
from tasks.stream.put_counters import Counted, PutCounters

FIRST_WAIT_S = 0.01
LONGEST_WAIT_S = 0.5

Reason = Literal[
    "store_full", "transfer_failed", "store_down", "too_large", "key_exists", "closing", "store_code"
]


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


@dataclass(frozen=True)
class Obstacle:
    """A return code that another try may not meet.

    Args:
        reason: What an error marker says if it stays.
        waits: Counter of tries that met it.
        seconds: Counter of the pauses after them.
        what: What a put did not find in time.
    """

    reason: Reason
    waits: Counted
    seconds: Counted
    what: str
    where: str
    hint: str


OBSTACLES: Mapping[int, Obstacle] = {
    STORE_FULL: Obstacle(
        "store_full",
        "put_waits",
        "put_wait_seconds",
        "no space",
        "store.segment_bytes",
        "lower stream.in_flight_bytes or raise store.segment_bytes; is the reader alive?",
    ),
    TRANSFER_FAILED: Obstacle(
        "transfer_failed",
        "transfer_waits",
        "transfer_wait_seconds",
        "no segment that takes it",
        "store",
        "did a server of this store die, or its master start anew? see the master's log, and whether "
        "store.host can be reached from here",
    ),
    MASTER_AWAY: Obstacle(
        "store_down",
        "transfer_waits",
        "transfer_wait_seconds",
        "no answer of the store's master",
        "store",
        "see the log of the store's master; is it alive, and store.host right?",
    ),
}


class Patience:
    """Repeats puts with growing pauses. Usable from several threads.

    Args:
        counters: Where waits are counted, by their obstacle.
        is_there: Whether a key holds a whole object.
        after_wait: Called after each pause.
    """

    def __init__(
        self, counters: PutCounters, is_there: Callable[[str], bool], after_wait: Callable[[], None]
    ):
        self._counters = counters
        self._is_there = is_there
        self._after_wait = after_wait
        self._closing = threading.Event()

    def end(self) -> None:
        """Let puts that wait give up, and later ones not begin to wait."""
        self._closing.set()

    def put(self, key: str, put: Callable[[int], int], timeout_s: float) -> bool:
        """Call `put` until it meets no obstacle.

        A transfer that failed may leave a key that is taken and holds nothing readable, and the next put of
        it would answer 0: so after one the object is looked for.

        Args:
            put: Takes how often space was waited for, returns Mooncake's code.
            timeout_s: Longest time of all pauses together.

        Returns:
            False where the store says that the key exists, so nothing was stored by this put.

        Raises:
            PutRefused: An obstacle stayed, the server ends, or the store answered another code.
        """
        started = time.monotonic()
        pause_s = FIRST_WAIT_S
        waits = 0
        has_failed = False
        while True:
            code = put(waits)
            if code == 0 and has_failed and not self._is_there(key):
                code = TRANSFER_FAILED
            obstacle = OBSTACLES.get(code)
            if obstacle is None:
                break
            has_failed |= code != STORE_FULL
            waited_s = time.monotonic() - started
            if waited_s >= timeout_s:
                raise _stayed(obstacle, key, code, waited_s, waits)
            self._counters.add(obstacle.waits)
            waits += code == STORE_FULL
            self._pause(key, pause_s, obstacle, waits)
            pause_s = min(2 * pause_s, LONGEST_WAIT_S)
        if code not in (0, OBJECT_EXISTS):
            raise PutRefused.because(
                "store_code", f"put of '{key}' answered {code}: {cause_of(code)}", where="store", waits=waits
            )
        return code == 0

    def _pause(self, key: str, pause_s: float, obstacle: Obstacle, waits: int) -> None:
        paused_at = time.monotonic()
        if self._closing.wait(pause_s * random.uniform(0.75, 1.25)):
            raise PutRefused.because(
                "closing", f"the server ends while '{key}' waits: {obstacle.what}", where="store", waits=waits
            )
        self._counters.add(obstacle.seconds, time.monotonic() - paused_at)
        self._after_wait()


def _stayed(obstacle: Obstacle, key: str, code: int, waited_s: float, waits: int) -> PutRefused:
    return PutRefused.because(
        obstacle.reason,
        f"{obstacle.what} for '{key}' within {waited_s:.0f} s (put answered {code}; {waits} waits for space)",
        where=obstacle.where,
        hint=obstacle.hint,
        waits=waits,
    )
