"""A hidden-state log that grows while it is trained on: what is in it by now, and waiting for more."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from tasks.stream.follower import LogFollower
from tasks.stream.log import IDS, INDEX, IndexEntry
from tasks.stream.retention import WAITING as WRITER_WAITS
from tasks.stream.retention import on_disk
from tasks.train.settings import WAITING

_SHORT_S = 0.05
_LONG_S = 0.5
_SAY_S = 2.0
_BESIDE_BYTES = 2**16 + 2**14
"""What the writer keeps free for its own files; rather too much, so that nobody waits for ever."""


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

    def is_full(self, released: int, window_bytes: int) -> bool:
        """Whether the writer waits for space that only a further checkpoint can free.

        Its own word may be old: it looks for freed space only now and then. What counts are the bytes.

        Args:
            released: Samples of `train` that may be deleted already, from the first.
        """
        if not self._follower.writer_waits:
            return False
        try:
            wanted = int(json.loads((self.folder / WRITER_WAITS).read_text(encoding="utf-8"))["bytes"])
        except (OSError, ValueError):
            return False  # it goes on at this moment
        beside = sum((self.folder / name).stat().st_size for name in (INDEX, IDS)) + _BESIDE_BYTES
        taken = self._kept_bytes + sum(on_disk(entry.bytes) for entry in self.train[released:])
        return taken + beside + wanted > window_bytes


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

    def reset(self) -> None:
        """Something came."""
        self._pause_s = _SHORT_S

    def pause(self, done: float, total: float) -> None:
        """Wait a little; the figures are for who watches."""
        self._check()
        now = time.monotonic()
        if now - self._said >= _SAY_S:
            self._said = now
            self._say(done, total, WAITING)
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _LONG_S)
