"""What a capture counted, kept on disk so that a resume goes on counting."""

from __future__ import annotations

import json
import time
from pathlib import Path

from tasks.stage import write_atomic
from tasks.stream.models import CaptureCounters


class Tally:
    """Counters of a capture across its sessions.

    Args:
        path: JSON file with the counters of earlier sessions, if any.
    """

    def __init__(self, path: Path):
        self._path = path
        old = read_counters(path)
        self._seconds_before = old.seconds
        self._started = time.monotonic()
        self.requests = old.requests
        self.regenerated = old.regenerated
        self.rejected = dict(old.rejected)
        self.target_prompt_tokens = old.target_prompt_tokens
        self.target_generated_tokens = old.target_generated_tokens
        self.store_full_waits = old.store_full_waits
        self.lost = 0

    def reject(self, reason: str, *, again: bool) -> None:
        """Count a rejected sample, and whether it is asked for again."""
        self.rejected[reason] = self.rejected.get(reason, 0) + 1
        self.regenerated += again

    def counters(self) -> CaptureCounters:
        return CaptureCounters(
            requests=self.requests,
            regenerated=self.regenerated,
            lost=self.lost,
            rejected=dict(sorted(self.rejected.items())),
            target_prompt_tokens=self.target_prompt_tokens,
            target_generated_tokens=self.target_generated_tokens,
            store_full_waits=self.store_full_waits,
            seconds=round(self._seconds_before + time.monotonic() - self._started, 3),
        )

    def save(self) -> None:
        write_atomic(self._path, self.counters().model_dump_json())


def read_counters(path: Path) -> CaptureCounters:
    """Stored counters; all zero if there are none yet."""
    if not path.exists():
        return CaptureCounters()
    return CaptureCounters.model_validate(json.loads(path.read_text(encoding="utf-8")))
