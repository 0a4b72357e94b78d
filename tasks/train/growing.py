"""A hidden-state log that grows while it is trained on: what is in it by now, and waiting for more."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tasks.stream.follower import LogFollower
from tasks.stream.log import IndexEntry
from tasks.train.ordered import on_disk
from tasks.train.settings import WAITING

_SHORT_S = 0.05
_LONG_S = 0.5
_SAY_S = 2.0
_FULL_S = 2.0
"""The writer looks for freed space several times in this time: only then is it really held up."""


class GrowingLog:
    """Samples of a growing log in the order of capture.

    Args:
        folder: The log's folder; it may be empty still.

    Attributes:
        train: Every sample of the train split.
        kept: For each of `train`, bytes on disk of the other samples before it: those are never deleted.
        held_before: For each of `train`, the number of held-out samples before it.
        held_out: Held-out samples that hold something to learn.
        ended: All samples are here.
    """

    def __init__(self, folder: Path):
        self._follower = LogFollower(folder)
        self.folder = folder
        self.train: list[IndexEntry] = []
        self.kept: list[int] = []
        self.held_before: list[int] = []
        self.held_out: list[IndexEntry] = []
        self.ended = False
        self._kept_bytes = 0
        self._held_seen = 0

    def poll(self) -> bool:
        """Take in what is new; False if nothing is."""
        ended = self._follower.ended  # before the samples: those that came before the mark are then here
        new = self._follower.poll()
        for entry in new:
            self._take(entry)
        changed = bool(new) or ended != self.ended
        self.ended = ended
        return changed

    def _take(self, entry: IndexEntry) -> None:
        if entry.split == "train":
            self.train.append(entry)
            self.kept.append(self._kept_bytes)
            self.held_before.append(self._held_seen)
            return
        self._kept_bytes += on_disk(entry.bytes)
        if entry.split == "held_out":
            self._held_seen += 1
            if entry.trainable_tokens > 0:
                self.held_out.append(entry)

    @property
    def writer_waits(self) -> bool:
        """The window is full."""
        return self._follower.writer_waits


class Patience:
    """Waiting for a growing log: short pauses that get longer, and a word now and then.

    Args:
        check: Called in each pause; raises to end the wait.
        say: Told every few seconds how much is done, of how much, and `WAITING`.
    """

    def __init__(self, check: Callable[[], None], say: Callable[[float, float, str], None]):
        self._check = check
        self._say = say
        self._pause_s = _SHORT_S
        self._said = 0.0
        self._full_since: float | None = None

    def reset(self) -> None:
        """Something came."""
        self._pause_s = _SHORT_S
        self._full_since = None

    def pause(self, done: float, total: float) -> None:
        """Wait a little; the figures are for who watches."""
        self._check()
        now = time.monotonic()
        if now - self._said >= _SAY_S:
            self._said = now
            self._say(done, total, WAITING)
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _LONG_S)

    def is_held_up(self, writer_waits: bool) -> bool:
        """Whether the writer has been waiting for us for a while, with nothing new to read."""
        now = time.monotonic()
        if not writer_waits:
            self._full_since = None
        elif self._full_since is None:
            self._full_since = now
        return self._full_since is not None and now - self._full_since >= _FULL_S
