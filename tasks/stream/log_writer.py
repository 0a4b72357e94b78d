"""The one writer of a hidden-state log.

What a power cut may cost: nothing that `append` or `complete` returned for. The order is: a sample's file,
written under another name, on disk; renamed; its token ids and its folder's names on disk; then its index
line on disk. Samples that are completed at the same time share all but the first of these waits.

Writing and completing are apart, because only the first needs the tensors and the processor, only the second
the disk: one thread may write the next sample while others wait for the disk.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from tasks.stage import sync_path, write_atomic
from tasks.stream.commit import Commit
from tasks.stream.durable import remove, writing
from tasks.stream.index import IndexEntry, TokenIds, encode_ids, index_digest
from tasks.stream.models import Split
from tasks.stream.repair import END, open_repaired
from tasks.stream.retention import ConsumedSamples, Space, on_disk
from tasks.stream.sample_file import SampleBytes, sample_bytes, sync_and_close, write_open

if TYPE_CHECKING:
    import torch

# Digits of the place and of the digest, which are not known when a line's length is estimated.
_LINE_MARGIN_BYTES = 64


@dataclass(frozen=True)
class WrittenSample:
    """A sample whose file is written under another name, but not yet on disk; it goes to `complete`.

    Args:
        entry: Its index entry, without its place among the ids.
        ids: Ids of prompt and answer, encoded.
        descriptor: Its open file.
        size: Bytes of its file.
        reserved: Bytes taken from the window, and how many of them for good.
    """

    entry: IndexEntry
    ids: bytes
    descriptor: int
    size: int
    reserved: tuple[int, int]

    @property
    def name(self) -> str:
        return f"sample {self.entry.i} ({self.entry.prompt_id})"


class LogWriter:
    """Appends samples, from several threads. Opening repairs what a killed writer left.

    Args:
        folder: The log's folder; made private to the user if it does not exist.
        window_bytes: Most bytes that the log may take; None keeps every sample.
        check_all: Read every file on opening, also where nothing says that one is damaged.
        sync: False leaves it to the system when data reach the disk: only for logs that may be lost.

    Attributes:
        entries: What the log holds, by sample number; also what was consumed and deleted.
        repaired: What was put right on opening, in words.

    Raises:
        StageInputError: The index is damaged in the middle, or of an older format.
        LogWriteError: The folder cannot be written.
    """

    def __init__(
        self, folder: Path, *, window_bytes: int | None = None, check_all: bool = False, sync: bool = True
    ):
        self.folder = Path(folder)
        with writing("the hidden-state log", self.folder, 0):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            opened = open_repaired(self.folder, check_all, window_bytes is not None)
        self.entries = opened.entries
        self.repaired = opened.repaired
        self._deletable = opened.deletable
        self._consumed = ConsumedSamples(self.folder)
        self._space = Space(self.folder, window_bytes, opened.used, opened.kept, self._delete_consumed)
        self._sync = sync
        self._lock = threading.Lock()
        self._claimed: set[int] = set()
        self._ids = TokenIds(self.folder)
        self._commit = Commit(self.folder, self.entries, sync)

    @property
    def peak_bytes(self) -> int:
        """Most bytes that the log took at once since it was opened."""
        return self._space.peak

    @property
    def waits(self) -> int:
        """How often a sample had to wait for space in the window."""
        return self._space.waits

    @property
    def waiting(self) -> bool:
        """Whether a sample waits for space now."""
        return self._space.waiting

    def append(
        self,
        *,
        i: int,
        prompt_id: str,
        domain: str,
        split: Split,
        prompt_tokens: int,
        answer_ids: Sequence[int],
        finish_reason: str,
        hidden_states: torch.Tensor,
        token_ids: torch.Tensor,
    ) -> IndexEntry:
        """Write a sample and complete it; on return it is on disk.

        Arguments and errors are those of `write` and `complete`.
        """
        return self.complete(
            self.write(
                i=i,
                prompt_id=prompt_id,
                domain=domain,
                split=split,
                prompt_tokens=prompt_tokens,
                answer_ids=answer_ids,
                finish_reason=finish_reason,
                hidden_states=hidden_states,
                token_ids=token_ids,
            )
        )

    def write(
        self,
        *,
        i: int,
        prompt_id: str,
        domain: str,
        split: Split,
        prompt_tokens: int,
        answer_ids: Sequence[int],
        finish_reason: str,
        hidden_states: torch.Tensor,
        token_ids: torch.Tensor,
    ) -> WrittenSample:
        """Give a sample to the system, which writes it to disk while others are written.

        It is not in the log before `complete`, which must follow. Waits while the window is full. The tensors
        may be views of a buffer that is used again afterwards.

        Args:
            hidden_states: `[T, L, H]`.
            token_ids: `[T]`, int64.

        Raises:
            ValueError: The sample's number is already in the log.
            LogWriteError: The disk is full or failed.
            WindowTooSmall: The sample cannot fit into the window.
            WriteAborted: `abort` was called while it waited for space.
        """
        sample = sample_bytes(hidden_states, token_ids)
        entry = IndexEntry(
            i=i,
            prompt_id=prompt_id,
            domain=sys.intern(domain),  # a few words, which each sample would keep a copy of
            split=split,
            tokens=int(token_ids.shape[0]),
            prompt_tokens=prompt_tokens,
            answer_tokens=len(answer_ids),
            answer_at=prompt_tokens,
            answer_xxh3=xxhash.xxh3_64_hexdigest(encode_ids(answer_ids)),
            finish_reason=sys.intern(finish_reason),
            bytes=sample.size,
            xxh3="",
            ids=self._ids,
        )
        ids = encode_ids([*token_ids[:prompt_tokens].tolist(), *answer_ids])
        self._claim(i)
        try:
            return self._write(entry, sample, ids)
        except BaseException:
            self._disclaim(i)
            raise

    def _claim(self, number: int) -> None:
        """Hold a number while its sample is written and completed."""
        with self._lock:
            if number in self.entries or number in self._claimed:
                raise ValueError(f"sample {number} is already in the log")
            self._claimed.add(number)

    def _disclaim(self, number: int) -> None:
        with self._lock:
            self._claimed.discard(number)

    def _write(self, entry: IndexEntry, sample: SampleBytes, ids: bytes) -> WrittenSample:
        size = on_disk(sample.size)
        beside = len(ids) + len(entry.line().encode()) + _LINE_MARGIN_BYTES
        kept = beside if entry.split == "train" else beside + size
        written = WrittenSample(entry, ids, -1, sample.size, (size + beside, kept))
        self._space.reserve(written.name, *written.reserved)
        try:
            with writing(written.name, self._path(entry), sample.size):
                descriptor, digest = write_open(self._temporary(entry), sample)
        except BaseException:
            self._space.release(*written.reserved)
            raise
        return replace(written, entry=replace(entry, xxh3=digest), descriptor=descriptor)

    def complete(self, written: WrittenSample) -> IndexEntry:
        """Put a written sample on disk and into the log; it is complete there or absent from it.

        Needs nothing of the sample's tensors: to be called from any thread, once for each sample.

        Raises:
            LogWriteError: The disk is full or failed.
        """
        entry = written.entry
        path = self._path(entry)
        try:
            with writing(written.name, path, written.size):
                self._sync_and_rename(written, path)
            added = self._commit.add(entry, written.ids)
        except BaseException:
            remove(path)
            self._space.release(*written.reserved)
            raise
        finally:
            self._disclaim(entry.i)
        if entry.split == "train":
            with self._lock:
                self._deletable[entry.i] = on_disk(written.size)
        return added

    def _sync_and_rename(self, written: WrittenSample, path: str) -> None:
        """What a full disk took is given back before anybody looks at what is free."""
        temporary = self._temporary(written.entry)
        try:
            sync_and_close(written.descriptor, self._sync)
            os.replace(temporary, path)
        except BaseException:
            remove(temporary)
            raise

    # Not as `Path`, which interns every name: the interpreter's table of them grows by megabytes.
    def _path(self, entry: IndexEntry) -> str:
        return f"{self.folder}/{entry.file_name}"

    def _temporary(self, entry: IndexEntry) -> str:
        return f"{self.folder}/.hs_{entry.i}.tmp"

    def _delete_consumed(self) -> int:
        """Delete the files of consumed training samples; their lines stay. Return the bytes freed."""
        if not self._consumed.renew():
            return 0
        with self._lock:
            chosen = [number for number in self._deletable if number in self._consumed.numbers]
            freed = sum(self._deletable.pop(number) for number in chosen)
        for number in chosen:
            remove(self._path(self.entries[number]))
        return freed

    def abort(self) -> None:
        """End all waiting for space; call it before joining the threads that append."""
        self._space.abort()

    def finish(self) -> str:
        """Write the end marker, which says that the log is complete; return the content digest."""
        digest = index_digest(self.entries.values())
        text = json.dumps({"samples": len(self.entries), "digest": digest}, indent=2)
        with writing("the end marker of the hidden-state log", self.folder / END, len(text)):
            write_atomic(self.folder / END, text + "\n")
            sync_path(self.folder)
        return digest

    def close(self) -> None:
        """Close the files; all that was appended is on disk already."""
        self.abort()
        self._commit.close()
