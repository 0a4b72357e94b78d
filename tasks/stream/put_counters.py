"""What the writing side counts about its puts."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Literal

Counted = Literal[
    "puts",
    "put_bytes",
    "put_waits",
    "put_wait_seconds",
    "transfer_waits",
    "transfer_wait_seconds",
    "puts_refused",
    "markers",
    "markers_lost",
    "reserves_spent",
]
MEANINGS: dict[Counted, str] = {
    "puts": "samples put into the hidden-state store",
    "put_bytes": "bytes of samples put into the hidden-state store",
    "put_waits": "times a put found the hidden-state store full and waited",
    "put_wait_seconds": "seconds that puts waited for space in the hidden-state store",
    "transfer_waits": "times a put found its segment dead or not mounted, or the master away, and waited",
    "transfer_wait_seconds": "seconds that puts waited for a segment that takes them",
    "puts_refused": "samples that were not stored",
    "markers": "error markers put in place of samples",
    "markers_lost": "error markers that were not stored either",
    "reserves_spent": "times the reserved space was given up for an error marker",
}


class PutCounters:
    """Counts since the last `take()`, from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, float] = defaultdict(float)

    def add(self, name: Counted, amount: float = 1) -> None:
        with self._lock:
            self._counts[name] += amount

    def take(self) -> dict[str, float]:
        """What was counted since the last call, by name; empty if nothing was."""
        with self._lock:
            taken, self._counts = self._counts, defaultdict(float)
        return dict(taken)
