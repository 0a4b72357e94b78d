"""The hidden-state log: a durable directory of captures, readable while it grows.

`hs_<i>.safetensors` holds `token_ids [T]` and `hidden_states [T, L, H]` of sample i; `index.jsonl` has one
line a sample, written after the file is on disk; `ids.u32` holds the ids of prompts and answers; `end.json`
says that the log is complete. A sample without a complete line does not exist. All files lie in one folder,
which is what the `file` backend of `speculators` reads: 100,000 of them are opened as fast as 1,000.

Letters: P prompt tokens, G generated tokens, T = P + G - 1 rows (the last generated token was never an
input of the target, so it has no hidden state), L captured layers, H hidden size.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tasks.errors import StageInputError
from tasks.stream.index import IDS, INDEX, RECAPTURE, IndexEntry, index_digest, read_index
from tasks.stream.log_writer import LogWriter, WrittenSample
from tasks.stream.models import Split
from tasks.stream.repair import END, note_damaged
from tasks.stream.retention import consumed
from tasks.stream.sample_file import HIDDEN_STATES, TOKEN_IDS, SampleDamaged, read_checked

if TYPE_CHECKING:
    import torch

__all__ = [
    "END",
    "HIDDEN_STATES",
    "IDS",
    "INDEX",
    "TOKEN_IDS",
    "HiddenStateLog",
    "IndexEntry",
    "LogWriter",
    "WrittenSample",
    "index_digest",
    "read_index",
]


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

        A damaged sample is remembered, so that the next writer captures it again.

        Raises:
            StageInputError: The file is missing, was changed, or does not fit its index line.
        """
        path = self.folder / entry.file_name
        try:
            tensors = read_checked(path, entry.bytes, entry.xxh3)
        except FileNotFoundError:
            raise self._missing(entry, path) from None
        except OSError as error:
            raise self._error(entry, path, f"cannot be read: {error.strerror}") from None
        except SampleDamaged as error:
            raise self._error(entry, path, f"was changed after its capture: {error}") from None
        states, ids = tensors[HIDDEN_STATES], tensors[TOKEN_IDS]
        if states.shape[0] != entry.tokens:
            raise self._error(
                entry, path, f"has {states.shape[0]} tokens, its index line says {entry.tokens}"
            )
        return states, ids

    def _missing(self, entry: IndexEntry, path: Path) -> StageInputError:
        if entry.i not in consumed(self.folder):
            return self._error(entry, path, "cannot be read: its file is missing")
        return StageInputError(
            f"sample {entry.i} ({entry.prompt_id}) was deleted after a checkpoint had consumed it",
            where=str(path),
            hint="resume from that checkpoint, or start again from stage stream",
        )

    def _error(self, entry: IndexEntry, path: Path, what: str) -> StageInputError:
        note_damaged(self.folder, entry.i)
        return StageInputError(
            f"sample {entry.i} ({entry.prompt_id}) {what}", where=str(path), hint=RECAPTURE
        )
