"""Reads all rows of one side; a row that cannot be used is skipped with file, line and reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tasks.errors import UsageError
from tasks.prompts.bad_row import BadRow, Skipped
from tasks.prompts.prompt import Message
from tasks.prompts.rows import Row, row_of
from tasks.prompts.sources import files_of, stem_of, values_of
from tasks.stage import canonical

_SHOWN = 5
_FEW = 200
"""Rows from which on a hopeless source is given up before its end."""


@dataclass
class Reading:
    """What one side's sources hold."""

    rows: list[Row] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    unanswered: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        return len(self.rows) + len(self.skipped)


def read_side(sources: Sequence[str], name: str, max_bad_rows: float, seen: set[str]) -> Reading:
    """Rows of all files, in the order of the files.

    Args:
        name: Field of the profile, for errors.
        seen: Ids of samples so far; grows.

    Raises:
        UsageError: A file cannot be read, or too many rows are bad.
    """
    reading, shared = Reading(), _Shared()
    for path in dict.fromkeys(file for source in sources for file in files_of(source, name)):
        before = len(reading.rows)
        for number, value in values_of(path, name):
            _take(reading, path, number, value, seen, shared)
        if len(reading.rows) == before and len(reading.skipped) >= _FEW:
            break
    _refuse_too_many(reading, name, max_bad_rows)
    return reading


def _take(reading: Reading, path: Path, number: int, value: Any, seen: set[str], shared: _Shared) -> None:
    try:
        if isinstance(value, BadRow):
            raise value
        row = row_of(value, stem_of(path), number)
        names = {sample.id for sample in row.samples}
        again = sorted(names & seen)
        if again:
            raise BadRow(f"the id '{again[0]}' occurs a second time", "id twice")
    except BadRow as reason:
        reading.skipped.append(Skipped(path.name, number, str(reason), reason.kind))
        return
    seen |= names
    if row.unanswered:
        reading.unanswered[row.unanswered] += 1
    reading.rows.append(shared.of(row))


class _Shared:
    """Keeps one copy of the system turns and tools that most rows of a log repeat."""

    def __init__(self) -> None:
        self._messages: dict[Message, Message] = {}
        self._tools: dict[str, tuple[Mapping[str, Any], ...]] = {}

    def of(self, row: Row) -> Row:
        first = row.messages[0]
        if first.role == "system":
            first = self._messages.setdefault(first, first)
        tools = row.tools
        if tools is not None:
            tools = self._tools.setdefault(canonical(tools), tools)
        return replace(row, messages=(first, *row.messages[1:]), tools=tools)


def _refuse_too_many(reading: Reading, name: str, max_bad_rows: float) -> None:
    skipped = reading.skipped
    if reading.rows and len(skipped) <= max_bad_rows * reading.total:
        return
    shown = "; ".join(str(row) for row in skipped[:_SHOWN])
    kinds = Counter(row.kind for row in skipped)
    if len(kinds) > 1:
        shown = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()) + f": {shown}"
    raise UsageError(
        f"{len(skipped)} of {reading.total} rows cannot be used: {shown}"
        + ("; ..." if len(skipped) > _SHOWN else ""),
        where=name,
        hint=f"mend these rows, or raise prompts.max_bad_rows (now {max_bad_rows:g})",
    )
