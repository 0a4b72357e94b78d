"""The index of a hidden-state log: one JSON line a sample, and the token ids of all samples in one file.

A line is a list of values in the order of `IndexEntry`'s fields: 100,000 are read in half a second. It is
appended after its sample's file is on disk, and never changed. A second kind of line, `{"dropped": i}`, takes
an earlier one back. The ids of prompts and answers lie in `ids.u32` (little endian,
4 bytes each), so that opening a log reads none of them and memory does not grow with the answers.
"""

from __future__ import annotations

import hashlib
import json
import os
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from tasks.errors import StageInputError
from tasks.stream.models import Split

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

INDEX = "index.jsonl"
IDS = "ids.u32"
ID_BYTES = 4
DROPPED = "dropped"
RECAPTURE = "run the pipeline again from stage stream"


class TokenIds:
    """The file of token ids of one log, opened when it is first needed.

    Args:
        folder: The log's folder.
    """

    def __init__(self, folder: Path):
        self.path = folder / IDS
        self._descriptor: int | None = None

    def __reduce__(self) -> tuple[type[TokenIds], tuple[Path]]:
        """Another process opens the file itself."""
        return TokenIds, (self.path.parent,)

    def read(self, start: int, count: int) -> NDArray[np.uint32]:
        """`count` ids from the one at `start`; fewer where the file ends."""
        import numpy as np

        if self._descriptor is None:
            if not self.path.exists():
                return np.empty(0, dtype="<u4")
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._descriptor)
        data = os.pread(self._descriptor, count * ID_BYTES, start * ID_BYTES)
        return np.frombuffer(data, dtype="<u4", count=len(data) // ID_BYTES)


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One line of the index: everything about a sample but its tensors."""

    i: int
    """Number of the sample, and of its file."""
    prompt_id: str
    domain: str
    split: Split
    tokens: int
    """T, rows of `hidden_states`."""
    prompt_tokens: int
    """P; the loss sees positions >= P."""
    answer_tokens: int
    """G, the end token included."""
    answer_at: int
    """Place of the answer's first id in the file of ids; the prompt's P ids lie before it."""
    answer_xxh3: str
    """XXH3-64 of the answer's ids as they lie there."""
    finish_reason: str
    bytes: int
    """Size of the file."""
    xxh3: str
    """XXH3-128 of the file, and so of the tensors' contents."""
    ids: TokenIds = field(repr=False, compare=False)

    @property
    def file_name(self) -> str:
        return f"hs_{self.i}.safetensors"

    @property
    def trainable_tokens(self) -> int:
        """Answer tokens that have a hidden state: T - P."""
        return self.tokens - self.prompt_tokens

    @property
    def answer_ids(self) -> tuple[int, ...]:
        """All G generated tokens, the end token included; read from disk each time.

        Raises:
            StageInputError: They were changed or cut.
        """
        found = self.ids.read(self.answer_at, self.answer_tokens)
        if xxhash.xxh3_64_hexdigest(found.tobytes()) != self.answer_xxh3:
            raise StageInputError(
                f"the answer of sample {self.i} ({self.prompt_id}) was changed after its capture",
                where=str(self.ids.path),
                hint=RECAPTURE,
            )
        return tuple(found.tolist())

    def prompt_ids(self) -> tuple[int, ...]:
        """The P prompt tokens, of an entry as it was read."""
        return tuple(self.ids.read(self.answer_at - self.prompt_tokens, self.prompt_tokens).tolist())

    def line(self) -> str:
        return json.dumps(_VALUES(self), separators=(",", ":"), ensure_ascii=False)


_NAMES = tuple(one.name for one in fields(IndexEntry) if one.name != "ids")
_TYPES = tuple(int if one.type == "int" else str for one in fields(IndexEntry) if one.name != "ids")
_VALUES = attrgetter(*_NAMES)
_IDENTITY = attrgetter(*(name for name in _NAMES if name != "answer_at"))


def encode_ids(ids: Sequence[int]) -> bytes:
    """Ids as they lie in the file."""
    import numpy as np

    return np.asarray(ids, dtype="<u4").tobytes()


def parse_records(data: bytes, path: Path, lines_before: int = 0) -> tuple[list[Any], int]:
    """Records of the complete lines in `data`, and how many bytes they take.

    What a power cut or a kill left at the end (half a line, or bytes that are no line) is not counted.

    Args:
        path: For messages.
        lines_before: Lines before `data`, for messages.

    Raises:
        StageInputError: A line that is followed by a sound one is damaged, or is of an older format.
    """
    end = data.rfind(b"\n") + 1
    try:
        records = json.loads(b"[" + data[:end].rstrip(b"\n").replace(b"\n", b",") + b"]")
        if data.count(b"\n", 0, end) == len(records) and all(map(_sound, records)):
            return records, end
    except (ValueError, TypeError):
        pass
    return _line_by_line(data[:end].split(b"\n")[:-1], path, lines_before)


def _line_by_line(lines: list[bytes], path: Path, before: int) -> tuple[list[Any], int]:
    records: list[Any] = []
    used = 0
    for number, line in enumerate(lines, start=1):
        record = _record(line)
        if record is None:
            if any(_record(later) is not None for later in lines[number:]):
                raise StageInputError(
                    f"line {before + number} of the hidden-state log's index is damaged",
                    where=str(path),
                    hint=RECAPTURE,
                )
            break
        if _old(record):
            raise StageInputError(
                f"line {before + number} of the hidden-state log's index has the format of an older version",
                where=str(path),
                hint=RECAPTURE + ", or read it with the version that wrote it",
            )
        records.append(record)
        used += len(line) + 1
    return records, used


def _sound(record: Any) -> bool:
    """True for a complete record of this format."""
    if type(record) is list:
        return tuple(map(type, record)) == _TYPES
    return type(record) is dict and type(record.get(DROPPED)) is int


def _record(line: bytes) -> Any:
    """The record of one line; None if it is none."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if _old(record) or _sound(record) else None


def _old(record: Any) -> bool:
    """True for a line of the format that kept all answers in the index."""
    return isinstance(record, dict) and record.keys() >= {"i", "answer_ids", "sha256"}


def apply_records(records: Iterable[Any], ids: TokenIds, entries: dict[int, IndexEntry]) -> list[IndexEntry]:
    """Bring `entries` (by number, in the order of capture) up to date; return what is new in it."""
    new: dict[int, IndexEntry] = {}
    for record in records:
        number = record[DROPPED] if type(record) is dict else record[0]
        # A number that comes again takes its new place in the order.
        entries.pop(number, None)
        new.pop(number, None)
        if type(record) is list:
            entries[number] = new[number] = IndexEntry(*[*record, ids])
    return list(new.values())


def read_index(folder: Path) -> list[IndexEntry]:
    """All complete entries in the order of capture; a torn end is left out.

    Raises:
        StageInputError: A line in the middle is damaged, or of an older format.
    """
    path = folder / INDEX
    records, _ = parse_records(path.read_bytes() if path.exists() else b"", path)
    entries: dict[int, IndexEntry] = {}
    apply_records(records, TokenIds(folder), entries)
    return list(entries.values())


def index_digest(entries: Iterable[IndexEntry]) -> str:
    """Identity of the data: SHA-256 over tensor contents, ids and what is known of each sample.

    It does not depend on the order of capture.
    """
    values = map(_IDENTITY, entries)
    lines = sorted(json.dumps(one, separators=(",", ":"), ensure_ascii=False) for one in values)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
