"""Finds the files that a profile names and reads their rows one by one, compressed or not."""

from __future__ import annotations

import gzip
import importlib.resources
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

from tasks.errors import UsageError
from tasks.evaluate.prompt_sets import files_of_set, is_prompt_set
from tasks.prompts.bad_row import BadRow
from tasks.prompts.tables import is_data_set, is_parquet, table_rows
from tasks.prompts.turns import json_of

PACKAGE_PREFIX = "package:"
SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")
"""Files that are taken from a folder; a file that is named itself may have any name."""
MAX_LINE_BYTES = 64 * 2**20
"""Longest line: a longer one is not a row but a file without line ends."""
_JUDGED_LINES = 1000
"""A file that holds no JSON object in so many lines is not JSONL."""
_GZIP, _ZSTD, _UTF16 = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", (b"\xff\xfe", b"\xfe\xff")
_BOM = b"\xef\xbb\xbf"
_ROW = '{"domain": "qa", "messages": [{"role": "user", "content": "..."}]} or {"prompt": "..."}'
_DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error, OSError)


def files_of(source: str, field: str) -> list[Path]:
    """The files that a profile names: a file, a data set's folder, the prompt files of a folder in order, or
    those of a public set (`set:NAME`).

    Raises:
        UsageError: There is nothing there.
        ServiceError: A set's hub cannot be reached.
    """
    if is_prompt_set(source):
        return files_of_set(source, field)
    if source.startswith(PACKAGE_PREFIX):
        path = Path(str(importlib.resources.files("profiles"))) / source.removeprefix(PACKAGE_PREFIX)
    else:
        path = Path(source).expanduser()
    if path.is_dir() and not is_data_set(path):
        return _in_folder(path, source, field)
    if not path.exists():
        raise UsageError(
            f"there is no prompt file or folder '{source}'",
            where=field,
            hint="give an existing JSONL file or a folder of them; `package:` names those of this project",
        )
    return [path]


def _in_folder(path: Path, source: str, field: str) -> list[Path]:
    files = sorted(file for file in path.iterdir() if file.name.endswith(SUFFIXES) and file.is_file())
    if files:
        return files
    parts = sorted(f"{source}/{part.name}" for part in path.iterdir() if is_data_set(part))
    if parts:
        raise UsageError(
            f"the folder '{source}' holds a data set in {len(parts)} splits",
            where=field,
            hint=f"name one of them: {', '.join(parts)}",
        )
    raise UsageError(
        f"the folder '{source}' has no *.jsonl file",
        where=field,
        hint=f"put prompt files there ({', '.join(SUFFIXES)}), one row a line: {_ROW}",
    )


def stem_of(path: Path) -> str:
    """Name of a source without its suffixes: `qa` for `qa.jsonl.gz`."""
    name = path.name
    for suffix in (".gz", ".zst", ".jsonl", ".ndjson", ".json", ".parquet", ".log"):
        name = name.removesuffix(suffix)
    return name


def values_of(path: Path, field: str) -> Iterator[tuple[int, Any]]:
    """Number and value of each row (or a `BadRow`: why the line has none), without holding the file.

    Raises:
        UsageError: The file cannot be read, is empty, or is of another kind.
    """
    if is_data_set(path) or is_parquet(path):
        yield from table_rows(path, field)
        return
    objects = lines = 0
    for number, line in _lines(path, field):
        if isinstance(line, bytes) and not line.strip():
            continue
        value = line if isinstance(line, BadRow) else _value(line)
        lines += 1
        objects += isinstance(value, dict)
        if not objects and lines >= _JUDGED_LINES:
            break
        yield number, value
    if not lines:
        raise UsageError(f"the prompt file '{path}' is empty", where=field, hint=f"one row a line: {_ROW}")
    if not objects:
        raise UsageError(
            f"the prompt file '{path}' is not JSONL: no line is a JSON object",
            where=field,
            hint=f"one row a line: {_ROW}",
        )


def _value(line: bytes) -> Any:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        return BadRow(f"byte {error.start + 1} of the line is not UTF-8", "encoding")
    return json_of(text)


def _lines(path: Path, field: str) -> Iterator[tuple[int, bytes | BadRow]]:
    """Lines from 1, blank ones too. A file that breaks off ends with the reason as its last line."""
    number = 0
    try:
        with _opened(path, field) as stream:
            while line := stream.readline(MAX_LINE_BYTES + 1):
                number += 1
                yield number, _checked(line, stream, number == 1, path, field)
    except _DAMAGE as error:
        if number == 0:
            raise _unreadable(path, field, str(error)) from None
        yield number + 1, BadRow(f"the file is damaged and ends here ({error})", "damaged file")


def _checked(line: bytes, stream: IO[bytes], first: bool, path: Path, field: str) -> bytes | BadRow:
    """The line without the mark that some editors put before the first; a line too long is passed over."""
    if first and line.startswith(_UTF16):
        raise _unreadable(path, field, "it is in UTF-16; write it in UTF-8")
    if len(line) > MAX_LINE_BYTES:
        _skip_line(stream)
        return BadRow(f"the line is longer than {MAX_LINE_BYTES // 2**20} MiB")
    return line.removeprefix(_BOM) if first else line


def _skip_line(stream: IO[bytes]) -> None:
    while (piece := stream.readline(MAX_LINE_BYTES)) and not piece.endswith(b"\n"):
        pass


def _opened(path: Path, field: str) -> IO[bytes]:
    """The file's bytes, unpacked if its first bytes say that it is packed."""
    try:
        with path.open("rb") as stream:
            start = stream.read(4)
        if start.startswith(_GZIP):
            return cast("IO[bytes]", gzip.open(path, "rb"))
        if start == _ZSTD:
            import pyarrow as pa

            return io.BufferedReader(pa.CompressedInputStream(pa.OSFile(str(path)), "zstd"))
        return path.open("rb")
    except OSError as error:
        raise _unreadable(path, field, str(error)) from None


def _unreadable(path: Path, field: str, why: str) -> UsageError:
    return UsageError(
        f"the prompt file '{path}' cannot be read: {why}",
        where=field,
        hint="give readable JSONL in UTF-8 (plain, .gz or .zst), Parquet, or a data set's folder",
    )
