"""Opening a log for writing: what a kill, a power cut or a bad disk left is put right, and said."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from tasks.errors import StageInputError
from tasks.stage import sync_path
from tasks.stream.index import (
    DROPPED,
    ID_BYTES,
    IDS,
    INDEX,
    IndexEntry,
    TokenIds,
    apply_records,
    parse_records,
)
from tasks.stream.retention import WAITING, consumed, on_disk
from tasks.stream.sample_file import file_digest

END = "end.json"
"""Written last: the log is complete."""
DAMAGED = ".damaged"
_KEPT_NAMES = (INDEX, IDS)
# Not the trainer's: it may be writing down what it has consumed at this moment.
_OWN_TEMPORARY = (".hs_", f".{END}.", f"{WAITING}.", f".{WAITING}.")


@dataclass
class OpenedLog:
    """A log that is in order.

    Args:
        entries: Samples by number, in the order of capture; deleted ones included.
        deletable: Number -> bytes on disk of the files that retention may delete once they are consumed.
        used: Bytes that all files take on disk.
        kept: Bytes of them that are never deleted.
        repaired: What was put right.
    """

    entries: dict[int, IndexEntry] = field(default_factory=dict)
    deletable: dict[int, int] = field(default_factory=dict)
    used: int = 0
    kept: int = 0
    repaired: list[str] = field(default_factory=list)


def note_damaged(folder: Path, number: int) -> None:
    """Tell the next writer that a reader found this sample damaged; a log that cannot be written stays."""
    try:
        with (folder / DAMAGED).open("a", encoding="utf-8") as stream:
            stream.write(f"{number}\n")
    except OSError:
        pass


def open_repaired(folder: Path, check_all: bool, windowed: bool) -> OpenedLog:
    """Put a log in order and say what it holds.

    Sizes of all files are compared. Contents are read where a reader found damage, of all files if the log
    was complete before (then something made the run come back to it), or on demand.

    Args:
        check_all: Read every file.
        windowed: Training samples that were consumed need no file any more.

    Raises:
        StageInputError: The index is damaged in the middle, or of an older format.
    """
    log = OpenedLog()
    files = _sizes(folder)
    check_all = check_all or END in files
    (folder / END).unlink(missing_ok=True)
    _read_index(folder, log)
    done: frozenset[int] = consumed(folder) if windowed else frozenset()
    suspect = log.entries.keys() if check_all else _damaged(folder)
    faults = {}
    for entry in log.entries.values():
        used_up = entry.split == "train" and entry.i in done
        if not used_up and (fault := _fault(folder, entry, files.get(entry.file_name), entry.i in suspect)):
            faults[entry.i] = fault
    _drop(folder, log, faults)
    _cut_ids(folder, log)
    _remove_strays(folder, log, files)
    (folder / DAMAGED).unlink(missing_ok=True)
    _count(folder, log, files)
    return log


def _sizes(folder: Path) -> dict[str, int]:
    with os.scandir(folder) as found:
        return {item.name: item.stat().st_size for item in found if item.is_file(follow_symlinks=False)}


def _read_index(folder: Path, log: OpenedLog) -> None:
    path = folder / INDEX
    data = path.read_bytes() if path.exists() else b""
    records, used = parse_records(data, path)
    apply_records(records, TokenIds(folder), log.entries)
    if used < len(data):
        log.repaired.append(f"{len(data) - used:,} bytes of a half-written end of the index were dropped")
        os.truncate(path, used)
        sync_path(path)


def _damaged(folder: Path) -> set[int]:
    path = folder / DAMAGED
    lines = path.read_text("utf-8", errors="replace").split("\n") if path.exists() else []
    return {int(line) for line in lines if line.isascii() and line.isdigit()}


def _fault(folder: Path, entry: IndexEntry, size: int | None, suspect: bool) -> str:
    """What is wrong with a sample; empty if nothing is."""
    if size is None:
        return "has no file"
    if size != entry.bytes:
        return f"has a file of {size:,} bytes instead of {entry.bytes:,}"
    try:
        if suspect:
            _ = entry.answer_ids
        elif len(entry.ids.read(entry.answer_at, entry.answer_tokens)) < entry.answer_tokens:
            return "has no answer"
    except StageInputError:
        return "has an answer that was changed"
    if suspect and file_digest(folder / entry.file_name) != entry.xxh3:
        return "has a file that was changed"
    return ""


def _drop(folder: Path, log: OpenedLog, faults: dict[int, str]) -> None:
    """Take back the lines of damaged samples, before anything else happens to their files."""
    if not faults:
        return
    lines = "".join(json.dumps({DROPPED: number}, separators=(",", ":")) + "\n" for number in faults)
    with (folder / INDEX).open("a", encoding="utf-8") as stream:
        stream.write(lines)
        stream.flush()
        os.fsync(stream.fileno())
    for number, fault in faults.items():
        entry = log.entries.pop(number)
        log.repaired.append(f"sample {number} ({entry.prompt_id}) {fault} and is captured again")


def _cut_ids(folder: Path, log: OpenedLog) -> None:
    """Cut ids that no line speaks of, so that the next ones begin at a whole place."""
    path = folder / IDS
    end = max((entry.answer_at + entry.answer_tokens for entry in log.entries.values()), default=0)
    if path.exists() and path.stat().st_size > end * ID_BYTES:
        os.truncate(path, end * ID_BYTES)


def _remove_strays(folder: Path, log: OpenedLog, files: dict[str, int]) -> None:
    """Remove files that no line speaks of: of this log they can be no part."""
    names = {entry.file_name for entry in log.entries.values()}
    for name in list(files):
        stray = name.endswith(".safetensors") and name not in names
        if stray or name == WAITING or (name.endswith(".tmp") and name.startswith(_OWN_TEMPORARY)):
            (folder / name).unlink(missing_ok=True)
            del files[name]


def _count(folder: Path, log: OpenedLog, files: dict[str, int]) -> None:
    for entry in log.entries.values():
        if entry.split == "train" and entry.file_name in files:
            log.deletable[entry.i] = on_disk(entry.bytes)
    samples = sum(on_disk(size) for name, size in files.items() if name.endswith(".safetensors"))
    index = sum(on_disk((folder / name).stat().st_size) for name in _KEPT_NAMES if (folder / name).exists())
    log.used = samples + index
    log.kept = log.used - sum(log.deletable.values())
