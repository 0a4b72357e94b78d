"""What a capture counted, kept on disk so that a resume goes on counting."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from tasks.stage import write_atomic
from tasks.stream.models import CaptureCounters, Source


class Tally:
    """Counters of a capture across its sessions.

    Args:
        path: JSON file with the counters of earlier sessions, if any.
    """

    def __init__(self, path: Path):
        self._path = path
        old = read_counters(path)
        self._old = old
        self._started = time.monotonic()
        self.requests = old.requests
        self.regenerated = old.regenerated
        self.rejected = dict(old.rejected)
        self.sources = dict(old.sources)
        self.target_prompt_tokens = old.target_prompt_tokens
        self.target_generated_tokens = old.target_generated_tokens
        self.store_full_waits = old.store_full_waits
        self.set_aside = old.set_aside
        # What this session finds among the prompts replaces what an earlier one found among the same.
        self.lost = 0
        self.dropped: dict[str, int] = {}
        self.recorded: dict[str, int] = {}
        # Of this session; kept by the parts that count them.
        self.lease_retries: Callable[[], int] = _zero
        self.swept: Callable[[], int] = _zero
        self.peak_in_flight_bytes: Callable[[], int] = _zero
        self.server_outages: Callable[[], tuple[int, float]] = _none
        self.store_outages: Callable[[], tuple[int, float]] = _none
        self.swept_of_dead_runs = 0

    def reject(self, reason: str, *, again: bool) -> None:
        """Count a rejected sample, and whether it is asked for again."""
        self.rejected[reason] = self.rejected.get(reason, 0) + 1
        self.regenerated += again

    def count_source(self, source: Source) -> None:
        """Count a captured sample by who gave its answer."""
        self.sources[source] = self.sources.get(source, 0) + 1

    def counters(self) -> CaptureCounters:
        old = self._old
        server, store = self.server_outages(), self.store_outages()
        return CaptureCounters(
            requests=self.requests,
            regenerated=self.regenerated,
            lost=self.lost,
            set_aside=self.set_aside,
            dropped=dict(sorted(self.dropped.items())),
            rejected=dict(sorted(self.rejected.items())),
            sources=dict(sorted(self.sources.items())),
            recorded=dict(sorted(self.recorded.items())),
            target_prompt_tokens=self.target_prompt_tokens,
            target_generated_tokens=self.target_generated_tokens,
            store_full_waits=self.store_full_waits,
            lease_retries=old.lease_retries + self.lease_retries(),
            server_outages=old.server_outages + server[0],
            store_outages=old.store_outages + store[0],
            outage_seconds=round(old.outage_seconds + server[1] + store[1], 3),
            swept=old.swept + self.swept(),
            swept_of_dead_runs=old.swept_of_dead_runs + self.swept_of_dead_runs,
            peak_in_flight_bytes=max(old.peak_in_flight_bytes, self.peak_in_flight_bytes()),
            seconds=round(old.seconds + time.monotonic() - self._started, 3),
        )

    def save(self) -> None:
        write_atomic(self._path, self.counters().model_dump_json())


def _zero() -> int:
    return 0


def _none() -> tuple[int, float]:
    return 0, 0.0


def read_counters(path: Path) -> CaptureCounters:
    """Stored counters; all zero if there are none yet."""
    if not path.exists():
        return CaptureCounters()
    return CaptureCounters.model_validate(json.loads(path.read_text(encoding="utf-8")))
