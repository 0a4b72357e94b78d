"""Reading a hidden-state log while it grows."""

from __future__ import annotations

from pathlib import Path

from tasks.stream.index import INDEX, IndexEntry, TokenIds, apply_records, parse_records
from tasks.stream.repair import END
from tasks.stream.retention import WAITING


class LogFollower:
    """Hands out each sample of a growing log once. Never blocks; the folder need not exist yet.

    Args:
        folder: The log's folder.

    Attributes:
        entries: All samples seen, by number; also those that retention has deleted since. After a repair
            the entry of a number may be another one than `poll` returned: load by the one in here.
    """

    def __init__(self, folder: Path):
        self.folder = Path(folder)
        self.entries: dict[int, IndexEntry] = {}
        self._ids = TokenIds(self.folder)
        self._given: set[int] = set()
        self._offset = 0
        self._lines = 0

    def poll(self) -> list[IndexEntry]:
        """Samples that are complete since the last call, in the order of capture.

        Raises:
            StageInputError: The index is damaged in the middle, or of an older format.
        """
        path = self.folder / INDEX
        if not path.exists():
            return []
        with path.open("rb") as stream:
            if path.stat().st_size < self._offset:
                # A writer took back lines that a full disk did not let it finish.
                self._offset = self._lines = 0
                self.entries.clear()
            stream.seek(self._offset)
            data = stream.read()
        records, used = parse_records(data, path, self._lines)
        self._offset += used
        self._lines += len(records)
        new = [
            entry
            for entry in apply_records(records, self._ids, self.entries)
            if entry.i not in self._given
        ]
        self._given.update(entry.i for entry in new)
        return new

    @property
    def ended(self) -> bool:
        """True once the log is complete; a `poll` after this saw True returns the last samples."""
        return (self.folder / END).exists()

    @property
    def writer_waits(self) -> bool:
        """True while the window is full: only a checkpoint that consumes samples lets capture go on."""
        return (self.folder / WAITING).exists()
