"""The hidden-state log: a durable directory of captures, readable while it grows.

`hs_<i>.safetensors` holds `hidden_states [T, L, H]` and `token_ids [T]` of sample i; `index.jsonl` holds
one line a sample and is written after the file. A sample without a complete line does not exist.
The files are also what the `file` backend of `speculators` reads.

Letters: P prompt tokens, G generated tokens, T = P + G - 1 rows (the last generated token was never an
input of the target, so it has no hidden state), L captured layers, H hidden size.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.errors import StageInputError
from tasks.stream.models import Split

if TYPE_CHECKING:
    import torch

INDEX = "index.jsonl"
HIDDEN_STATES = "hidden_states"
TOKEN_IDS = "token_ids"
_RECAPTURE = "run the pipeline again from stage stream"


@dataclass(frozen=True)
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
    answer_ids: tuple[int, ...]
    """All G generated tokens, the end token included."""
    finish_reason: str
    bytes: int
    """Size of the file."""
    sha256: str
    """SHA-256 of the file."""

    @property
    def file_name(self) -> str:
        return f"hs_{self.i}.safetensors"

    @property
    def trainable_tokens(self) -> int:
        """Answer tokens that have a hidden state: T - P."""
        return self.tokens - self.prompt_tokens

    def line(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"), ensure_ascii=False)


_FIELDS = frozenset(field.name for field in fields(IndexEntry))


def parse_line(line: str) -> IndexEntry:
    """Read one index line; unknown fields are ignored, so that an older reader reads a newer log.

    Raises:
        ValueError: Not a complete index line.
    """
    raw = json.loads(line)
    if not isinstance(raw, dict) or not raw.keys() >= _FIELDS:
        raise ValueError("not an index line")
    known: dict[str, Any] = {name: raw[name] for name in _FIELDS}
    return IndexEntry(**{**known, "answer_ids": tuple(raw["answer_ids"])})


def read_index(folder: Path) -> list[IndexEntry]:
    """All complete entries in the order of capture.

    A half-written last line is left out; any other unreadable line is an error.

    Raises:
        StageInputError: A line in the middle is damaged.
    """
    path = folder / INDEX
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    entries = []
    lines = text.split("\n")
    for number, line in enumerate(lines[:-1], start=1):
        try:
            entries.append(parse_line(line))
        except (ValueError, TypeError) as error:
            raise StageInputError(
                f"line {number} of the hidden-state log's index is damaged ({error})",
                where=str(path),
                hint=_RECAPTURE,
            ) from None
    return entries


def index_digest(entries: Iterable[IndexEntry]) -> str:
    """Identity of the data: SHA-256 over the sorted index lines, whatever the order of capture."""
    lines = sorted(entry.line() for entry in entries)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


class HiddenStateLog:
    """Reader of a log, which may still grow.

    Args:
        folder: The log's folder.
    """

    def __init__(self, folder: Path):
        self.folder = Path(folder)

    def entries(self, split: Split | None = None) -> list[IndexEntry]:
        """Entries of one split (or all), in the order of capture."""
        return [entry for entry in read_index(self.folder) if split is None or entry.split == split]

    def load(self, entry: IndexEntry) -> tuple[torch.Tensor, torch.Tensor]:
        """Return `hidden_states [T, L, H]` and `token_ids [T]` (int64) of a sample, checked.

        Raises:
            StageInputError: The file is missing, was changed, or does not fit its index line.
        """
        from safetensors.torch import load

        path = self.folder / entry.file_name
        try:
            data = path.read_bytes()
        except OSError as error:
            raise StageInputError(
                f"sample {entry.i} ({entry.prompt_id}) cannot be read: {error.strerror}",
                where=str(path),
                hint=_RECAPTURE,
            ) from None
        if len(data) != entry.bytes or hashlib.sha256(data).hexdigest() != entry.sha256:
            raise StageInputError(
                f"sample {entry.i} ({entry.prompt_id}) was changed after its capture",
                where=str(path),
                hint=_RECAPTURE,
            )
        tensors = load(data)
        states, ids = tensors[HIDDEN_STATES], tensors[TOKEN_IDS]
        if states.ndim != 3 or states.shape[0] != entry.tokens or tuple(ids.shape) != (entry.tokens,):
            raise StageInputError(
                f"sample {entry.i} has shapes {tuple(states.shape)} and {tuple(ids.shape)}, "
                f"its index line says {entry.tokens} tokens",
                where=str(path),
                hint=_RECAPTURE,
            )
        return states, ids


class LogWriter:
    """The one writer of a log. Opening repairs what a killed writer left.

    Args:
        folder: The log's folder; made private to the user if it does not exist.

    Attributes:
        entries: What the log holds, by sample number.
        repaired: What was put right on opening, in words.
    """

    def __init__(self, folder: Path):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.repaired: list[str] = []
        self.entries = self._repair()
        self._lock = threading.Lock()
        self._index = (self.folder / INDEX).open("a", encoding="utf-8")

    def _repair(self) -> dict[int, IndexEntry]:
        """Drop a half-written tail, lines without their file, and files without a line."""
        kept: dict[int, IndexEntry] = {}
        before = read_index(self.folder)
        for entry in before:
            path = self.folder / entry.file_name
            if path.is_file() and path.stat().st_size == entry.bytes:
                kept[entry.i] = entry
            else:
                self.repaired.append(f"sample {entry.i} has no complete file and is captured again")
        text = "".join(entry.line() + "\n" for entry in kept.values())
        path = self.folder / INDEX
        if not path.exists() or path.read_bytes() != text.encode():
            if path.exists() and len(kept) == len(before):
                self.repaired.append("a half-written last line of the index was dropped")
            temporary = path.with_name(f".{INDEX}.tmp")
            temporary.write_text(text, encoding="utf-8")
            os.replace(temporary, path)
        names = {entry.file_name for entry in kept.values()}
        for stray in self.folder.glob("*.safetensors*"):
            if stray.name not in names:
                stray.unlink()
        for stray in self.folder.glob(".hs_*.tmp"):
            stray.unlink()
        return kept

    def append(
        self,
        *,
        i: int,
        prompt_id: str,
        domain: str,
        split: Split,
        prompt_tokens: int,
        answer_ids: tuple[int, ...],
        finish_reason: str,
        hidden_states: torch.Tensor,
        token_ids: torch.Tensor,
    ) -> IndexEntry:
        """Write a sample's file, then its index line; both are complete or absent.

        Args:
            hidden_states: `[T, L, H]`.
            token_ids: `[T]`, int64.

        Raises:
            ValueError: The sample's number is already in the log.
        """
        from safetensors.torch import save

        if i in self.entries:
            raise ValueError(f"sample {i} is already in the log")
        data = save({HIDDEN_STATES: hidden_states.contiguous(), TOKEN_IDS: token_ids.contiguous()})
        entry = IndexEntry(
            i=i,
            prompt_id=prompt_id,
            domain=domain,
            split=split,
            tokens=int(token_ids.shape[0]),
            prompt_tokens=prompt_tokens,
            answer_ids=answer_ids,
            finish_reason=finish_reason,
            bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
        )
        temporary = self.folder / f".hs_{i}.tmp"
        temporary.write_bytes(data)
        os.replace(temporary, self.folder / entry.file_name)
        with self._lock:
            self._index.write(entry.line() + "\n")
            self._index.flush()
            self.entries[i] = entry
        return entry

    def close(self) -> None:
        """Make the index durable and close it."""
        self._index.flush()
        os.fsync(self._index.fileno())
        self._index.close()
