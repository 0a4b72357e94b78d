"""A canary in every form in which a secret may get out, and the search for all of them."""

from __future__ import annotations

import base64
import gzip
import json
import logging
import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

_PIECE = 6


def forms_of(canary: str) -> dict[str, str]:
    """Form -> text that holds the canary in it; the canary must have characters that a URL escapes."""
    packed = base64.b64encode(canary.encode()).decode()
    middle = len(canary) // 2
    return {
        "plain": canary,
        "base64": packed,
        "base64 of more": base64.b64encode(f"user:{canary}".encode()).decode(),
        "URL": quote(canary, safe=""),
        "two lines": f"{canary[:middle]}\n{canary[middle:]}",
        "base64 over two lines": f"{packed[:middle]}\n{packed[middle:]}",
    }


def say_secrets(canary: str) -> str:
    """Log it in every form, through our logger, Prefect's and a library's error; returns all of it."""
    from prefect import get_run_logger

    forms = forms_of(canary)
    for name, form in forms.items():
        logging.getLogger("retrain_dspark").warning("a library says (%s): %s", name, form)
        get_run_logger().warning(f"and so does another ({name}): {form}")
    everything = "\n".join(forms.values())
    try:
        raise ValueError(everything)
    except ValueError:
        logging.getLogger("retrain_dspark.a_library").exception("it failed")
    return everything


def found_in(root: Path, canary: str) -> dict[str, set[str]]:
    """File -> forms of the canary in it, over every file below `root`.

    Independent of the product's own search: pieces of each form are looked for in the raw bytes, so that
    what is broken over lines, in a page of a database or escaped in JSON, is found by its pieces. Rows of
    SQLite databases are read too, and what is packed in them.
    """
    pieces = dict(_pieces(canary))
    hits: dict[str, set[str]] = {}
    for path in sorted(p for p in root.rglob("*") if p.is_file()):
        contents = [path.read_bytes(), *_rows(path)]
        told = {form for form, piece in pieces.items() for one in contents if piece in one}
        if told:
            hits[path.relative_to(root).as_posix()] = told
    return hits


def _pieces(canary: str) -> Iterator[tuple[str, bytes]]:
    """The first and last characters of every form: enough to know it by, and never broken in the middle."""
    for name, text in forms_of(canary).items():
        for part, piece in (("start", text[:_PIECE]), ("end", text[-_PIECE:].rstrip("="))):
            if not (name == "base64 of more" and part == "start"):  # that is only the word before it
                yield f"{name}, {part}", piece.encode()


def _rows(path: Path) -> Iterator[bytes]:
    """Every value of a SQLite database as text, and what is compressed in it; nothing for other files."""
    with open(path, "rb") as stream:
        if stream.read(16) != b"SQLite format 3\0":
            return
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        tables = [
            name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")
        ]
        for table in tables:
            for row in connection.execute(f'select * from "{table}"'):
                yield from (_unpacked(value) for value in row if isinstance(value, str | bytes))
    finally:
        connection.close()


def _unpacked(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    for unpack in (gzip.decompress, zlib.decompress):
        try:
            return unpack(data)
        except (OSError, zlib.error, EOFError):
            continue
    return data


def variables(canary: str) -> Mapping[str, str]:
    """Variables of a command that hold the canary: as it is, in an address, in a header, and in JSON."""
    header = base64.b64encode(f"user:{canary}".encode()).decode()
    return {
        "CANARY_TOKEN": canary,
        "CANARY_BASIC_AUTH_SECRET": f"Basic {header}",
        "CANARY_CONFIG_SECRET": json.dumps({"key": canary}),
    }
