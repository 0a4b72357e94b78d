"""Batches of a log that still grows: consecutive samples in the order of capture.

The plan is a function of that order alone (and of cuts that a checkpoint remembers), never of the moment at
which a sample arrived. A trainer that was killed makes the same plan again from the index, whose lines stay
when their files are deleted, and goes on behind the last batch of its checkpoint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from tasks.stream.log import IndexEntry
from tasks.stream.retention import on_disk

RELEASE_SHARE = 0.25
"""Part of the free window whose samples are consumed before a checkpoint lets them go. Below that much the
writer can wait only for a sample that takes more than the other three quarters."""


@dataclass(frozen=True)
class OrderedBatch:
    """One batch of the plan.

    Args:
        entries: Its samples, consecutive in the order of capture.
        end: Samples of the train split up to here, from the first of the log; more than those of the batches
            where one has no token to learn from.
        digest: Digest over the index lines of all of them.
        release: A checkpoint must follow, so that the window gets its space back.
    """

    entries: tuple[IndexEntry, ...]
    end: int
    digest: str
    release: bool


@dataclass
class _Open:
    """The batch that is being filled."""

    entries: list[IndexEntry] = field(default_factory=list)
    tokens: int = 0


class OrderedPlan:
    """Packs samples into batches in the order in which they are added.

    Args:
        batch_tokens: Packed tokens in a batch at most (a longer document stands alone).
        window_bytes: Budget of the log; None where every sample is kept.
        cuts: Numbers of samples after which a batch was closed early.

    Attributes:
        batches: What is settled.
        closed: No sample will follow.
        cuts: Places of all early ends so far.
    """

    def __init__(self, batch_tokens: int, window_bytes: int | None, cuts: Iterable[int] = ()):
        self._batch_tokens = batch_tokens
        self._window_bytes = window_bytes
        self._open = _Open()
        self._unreleased = 0
        self._hash = hashlib.sha256()
        self.batches: list[OrderedBatch] = []
        self.closed = False
        self.cuts = list(cuts)
        self.end = 0

    def add(self, entry: IndexEntry, kept_bytes: int) -> None:
        """Put the next sample of the train split into the plan.

        Args:
            kept_bytes: Bytes on disk of all samples before it that are never deleted.
        """
        full = self._open.tokens + entry.tokens > self._batch_tokens
        if entry.trainable_tokens > 0 and self._open.entries and full:
            self._close(release=False)
        self.end += 1
        self._hash.update(f"{entry.line()}\n".encode())
        self._unreleased += on_disk(entry.bytes)
        if entry.trainable_tokens > 0:
            self._open.entries.append(entry)
            self._open.tokens += entry.tokens
        if self.end in self.cuts or self._must_release(kept_bytes):
            self._close(release=True)

    def cut(self) -> bool:
        """Close the open batch now, as the writer waits for it; False if there is none."""
        if not self._open.entries:
            return False
        self.cuts.append(self.end)
        self._close(release=True)
        return True

    def close(self) -> None:
        """The log is complete: what is open becomes the last batch, also if samples follow after all."""
        if self._open.entries:
            self.cuts.append(self.end)
        self._close(release=False)
        self.closed = True

    def _must_release(self, kept_bytes: int) -> bool:
        if self._window_bytes is None:
            return False
        return self._unreleased >= RELEASE_SHARE * (self._window_bytes - kept_bytes)

    def _close(self, release: bool) -> None:
        if not self._open.entries:
            return
        digest = self._hash.copy().hexdigest()
        self.batches.append(OrderedBatch(tuple(self._open.entries), self.end, digest, release))
        self._open = _Open()
        if release:
            self._unreleased = 0
