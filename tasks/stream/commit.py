"""Index lines and token ids go to disk in groups: who waits for the disk takes along those behind."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, replace
from pathlib import Path

from tasks.stage import sync_path
from tasks.stream.durable import LogWriteError, write_all, writing
from tasks.stream.index import ID_BYTES, IDS, INDEX, IndexEntry


@dataclass
class _Waiting:
    """A sample whose file is complete and whose line is not yet on disk."""

    entry: IndexEntry
    ids: bytes
    done: bool = False
    error: Exception | None = None


class Commit:
    """Appends to the index and to the file of ids. Usable from several threads.

    Args:
        folder: The log's folder; both files end with a complete record.
        entries: Gets each sample when its line is on disk.
        sync: False leaves it to the system when they reach the disk.
    """

    def __init__(self, folder: Path, entries: dict[int, IndexEntry], sync: bool):
        self._folder = folder
        self._entries = entries
        self._sync = sync
        flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        self._index = os.open(folder / INDEX, flags, 0o600)
        self._ids = os.open(folder / IDS, flags, 0o600)
        self._index_size = os.fstat(self._index).st_size
        self._ids_size = os.fstat(self._ids).st_size
        self._queue: list[_Waiting] = []
        self._queue_lock = threading.Lock()
        self._disk_lock = threading.Lock()
        self._broken = ""

    def add(self, entry: IndexEntry, ids: bytes) -> IndexEntry:
        """Put a sample's line on disk; the first that comes takes along all that wait.

        Args:
            entry: Its `answer_at` counts from the first of `ids`.
            ids: Ids of prompt and answer, encoded.

        Returns:
            The entry with its place in the file of ids.

        Raises:
            LogWriteError: The disk did not take it; neither file has changed.
        """
        mine = _Waiting(entry, ids)
        with self._queue_lock:
            self._queue.append(mine)
        with self._disk_lock:
            if not mine.done:
                self._commit_waiting()
        if mine.error is not None:
            raise mine.error
        return mine.entry

    def _commit_waiting(self) -> None:
        with self._queue_lock:
            group, self._queue = self._queue, []
        try:
            self._put_on_disk(group)
        except Exception as error:
            for one in group:
                one.error = error
        for one in group:
            one.done = True

    def _put_on_disk(self, group: list[_Waiting]) -> None:
        if self._broken:
            raise LogWriteError(
                self._broken, where=str(self._folder), hint="see the system's log; then resume"
            )
        place = self._ids_size // ID_BYTES
        for one in group:
            one.entry = replace(one.entry, answer_at=one.entry.answer_at + place)
            place += len(one.ids) // ID_BYTES
        ids = b"".join(one.ids for one in group)
        lines = "".join(one.entry.line() + "\n" for one in group).encode()
        with writing("the index of the hidden-state log", self._folder / INDEX, len(ids) + len(lines)):
            try:
                self._write(ids, lines)
            except OSError:
                self._take_back()
                raise
        self._ids_size += len(ids)
        self._index_size += len(lines)
        for one in group:
            self._entries[one.entry.i] = one.entry

    def _write(self, ids: bytes, lines: bytes) -> None:
        write_all(self._ids, ids)
        if self._sync:
            os.fdatasync(self._ids)
            # After the ids: a file system with a journal has put the names of the files on disk with them.
            sync_path(self._folder)
        write_all(self._index, lines)
        if self._sync:
            os.fdatasync(self._index)

    def _take_back(self) -> None:
        """Cut off what a failed write left, so that no later line follows half a one."""
        try:
            os.ftruncate(self._index, self._index_size)
            os.ftruncate(self._ids, self._ids_size)
        except OSError as error:
            self._broken = f"the log takes no more samples: its index cannot be put right ({error.strerror})"

    def close(self) -> None:
        os.close(self._index)
        os.close(self._ids)
