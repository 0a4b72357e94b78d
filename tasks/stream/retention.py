"""Retention `window`: which samples training has used up, and the byte budget of the log.

The trainer says what it no longer needs, after a checkpoint that has consumed it is complete. The writer of
the log, and nobody else, deletes: files of the train split that are consumed, when it needs their space.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from tasks.errors import RetrainError, StageInputError
from tasks.stage import sync_path, write_atomic
from tasks.stream.durable import writing

CONSUMED = ".consumed.json"
WAITING = ".waiting.json"
_BLOCK_BYTES = 4096
_BOOKKEEPING_BYTES = 64 * 1024
_LOOK_S = 0.2


class WriteAborted(RetrainError):
    """The log is closing; a sample that waited for space is not in it."""


class WindowTooSmall(RetrainError):
    """A sample can never fit into the window beside what is always kept."""


def consumed(folder: Path) -> frozenset[int]:
    """Numbers of the samples that a complete checkpoint has consumed.

    Raises:
        StageInputError: The file that says so is damaged.
    """
    path = folder / CONSUMED
    try:
        ranges = json.loads(path.read_text(encoding="utf-8"))["ranges"]
        return frozenset(number for first, last in ranges for number in range(first, last + 1))
    except FileNotFoundError:
        return frozenset()
    except (ValueError, TypeError, KeyError) as error:
        raise StageInputError(
            f"the list of consumed samples is damaged ({error})",
            where=str(path),
            hint="remove it; samples whose files are gone are then captured again",
        ) from None


def mark_consumed(folder: Path, numbers: Iterable[int]) -> None:
    """Add samples to the consumed ones, durably. The trainer calls it after each complete checkpoint.

    Saying it again changes nothing, so a resumed trainer repeats all that its checkpoint holds. One process
    at a time may call it. From here on the files of these samples may be gone at any moment.

    Raises:
        LogWriteError: The disk did not take it.
    """
    before = consumed(folder)
    after = before | frozenset(numbers)
    if after == before:
        return
    text = json.dumps({"ranges": _ranges(after)}, separators=(",", ":"))
    with writing("the list of consumed samples", folder / CONSUMED, len(text)):
        write_atomic(folder / CONSUMED, text)
        sync_path(folder)


def forget_consumed(folder: Path) -> None:
    """Begin again: for a training that starts from nothing. The next writer captures what is gone."""
    (folder / CONSUMED).unlink(missing_ok=True)
    sync_path(folder)


def _ranges(numbers: Iterable[int]) -> list[list[int]]:
    """`[first, last]` of each run of consecutive numbers."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return runs


def on_disk(size: int) -> int:
    """Bytes that a file of `size` takes, in whole blocks."""
    return -(-size // _BLOCK_BYTES) * _BLOCK_BYTES


class ConsumedSamples:
    """The consumed samples, read again only when they changed."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._state: tuple[int, int] | None = None
        self.numbers: frozenset[int] = frozenset()

    def renew(self) -> bool:
        """True if the numbers may have changed since the last call."""
        try:
            found = os.stat(self._folder / CONSUMED)
            state: tuple[int, int] | None = (found.st_ino, found.st_mtime_ns)
        except FileNotFoundError:
            state = None
        if state == self._state:
            return False
        self._state, self.numbers = state, consumed(self._folder)
        return True


class Space:
    """The budget of a log: every file in its folder, temporary ones included, at every instant.

    Args:
        folder: The log's folder.
        limit_bytes: The window; None for no bound.
        used: Bytes that its files take now, in whole blocks.
        kept: Bytes of them that are never deleted.
        make_room: Deletes what may go; returns the bytes that this freed. Called by one thread at a time.

    Attributes:
        peak: Most bytes taken at once so far, reservations included.
        waits: How often a sample had to wait for space.
    """

    def __init__(
        self, folder: Path, limit_bytes: int | None, used: int, kept: int, make_room: Callable[[], int]
    ):
        self._folder = folder
        self._limit = limit_bytes
        self._used = used + _BOOKKEEPING_BYTES
        self._kept = kept + _BOOKKEEPING_BYTES
        self._make_room = make_room
        self._change = threading.Condition()
        self._aborted = False
        self._waiting = 0
        self.peak = self._used
        self.waits = 0

    @property
    def waiting(self) -> bool:
        """Whether a sample waits for space."""
        return self._waiting > 0

    def reserve(self, name: str, amount: int, kept: int) -> None:
        """Take `amount` bytes, `kept` of them for good; waits until consumption frees space.

        Raises:
            WindowTooSmall: It can never fit.
            WriteAborted: The log was aborted meanwhile.
        """
        with self._change:
            if self._limit is not None:
                self._wait_for_space(name, amount, kept, self._limit)
            self._used += amount
            self._kept += kept
            self.peak = max(self.peak, self._used)

    def _wait_for_space(self, name: str, amount: int, kept: int, limit: int) -> None:
        waited = False
        try:
            while self._used + amount > limit:
                self._refuse_what_never_fits(name, amount, limit)
                if self._aborted:
                    raise WriteAborted(f"{name} was given up: the log is closing", where=str(self._folder))
                if freed := self._make_room():
                    self._used -= freed
                    continue
                if not waited:
                    waited = True
                    self._announce(+1, amount)
                # The trainer is another process: only its file tells, so it is looked at now and then.
                self._change.wait(_LOOK_S)
        finally:
            if waited:
                self._announce(-1, amount)

    def _refuse_what_never_fits(self, name: str, amount: int, limit: int) -> None:
        if self._kept + amount > limit:
            raise WindowTooSmall(
                f"{name} needs {amount:,} bytes beside {self._kept:,} that are always kept (held-out and "
                f"evaluation samples, index), but the window has {limit:,}",
                where="stream.window_bytes",
                hint="raise it, or lower stream.max_new_tokens or prompts.held_out",
            )

    def _announce(self, change: int, amount: int) -> None:
        """Tell readers that the writer waits: a trainer with nothing to read should checkpoint now."""
        self._waiting += change
        path = self._folder / WAITING
        if self._waiting == 0:
            path.unlink(missing_ok=True)
        elif change > 0:
            self.waits += 1
            with writing("the sign that capture waits for space", path, _BLOCK_BYTES):
                write_atomic(path, json.dumps({"bytes": amount}))

    def release(self, amount: int, kept: int) -> None:
        """Give back what `reserve` took, for a sample that was not written."""
        with self._change:
            self._used -= amount
            self._kept -= kept
            self._change.notify_all()

    def abort(self) -> None:
        """End all waiting, now and later."""
        with self._change:
            self._aborted = True
            self._change.notify_all()
