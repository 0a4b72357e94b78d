"""What the capture client tells the flow while it works: one short line a second at most."""

from __future__ import annotations

import time
from collections.abc import Iterable

from tasks.processes.child import ProgressFile
from tasks.stream.log import IndexEntry
from tasks.stream.tally import Tally

_EVERY_S = 1.0


class CaptureProgress:
    """Writes progress when something was captured, so that a stall is seen as silence.

    Args:
        path: File that `run_job` follows.
        entries: What the log holds already.
        tally: Counters; saved with each line.
        total: Prompts in all.
        missing: Prompts that are not finished yet.
    """

    def __init__(self, path: str, entries: Iterable[IndexEntry], tally: Tally, total: int, missing: int):
        self._file = ProgressFile(path)
        self._tally = tally
        self._total = total
        self._done = total - missing
        self._tokens = self._bytes = 0
        for entry in entries:
            self._add(entry)
        self._last = (time.monotonic(), self._target_tokens())
        self._rate = 0.0

    def _add(self, entry: IndexEntry) -> None:
        self._tokens += entry.tokens
        self._bytes += entry.bytes

    def _target_tokens(self) -> int:
        return self._tally.target_prompt_tokens + self._tally.target_generated_tokens

    def sample(self, entry: IndexEntry | None) -> None:
        """One more prompt is finished, with its entry if it was captured."""
        self._done += 1
        if entry is not None:
            self._add(entry)
        now, tokens = time.monotonic(), self._target_tokens()
        if now - self._last[0] >= _EVERY_S:
            self._rate = (tokens - self._last[1]) / (now - self._last[0])
            self._last = (now, tokens)
            self._tally.save()
            self.write()

    def write(self, note: str = "") -> None:
        metrics = {
            "tokens": float(self._tokens),
            "tokens_per_s": round(self._rate, 2),
            "bytes": float(self._bytes),
            "rejected": float(sum(self._tally.rejected.values())),
            "lost": float(self._tally.lost),
        }
        self._file.write(self._done, self._total, "samples", metrics, note)
