"""The texts that a reader can get out of a published file, also those that are packed or encoded."""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Iterator
from pathlib import Path

from tasks.secret_forms import views

_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{20,}={0,2}")
_HEX = re.compile(r"\b(?:[0-9a-f]{2}){12,}\b", re.I)
_PRINTABLE = re.compile(rb"[\t\n\r\x20-\x7e]{8,}")
_DEPTH = 2
_DECODED_BYTES = 1 << 20


def text_of(path: Path) -> str:
    """What can be read in a file: its text, or the printable parts of a binary one.

    Of safetensors the header alone: names and metadata. The numbers after it are no text, and many.
    """
    if path.suffix == ".safetensors":
        return _header(path)
    data = path.read_bytes()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "\n".join(part.decode("ascii") for part in _PRINTABLE.findall(data))


def _header(path: Path) -> str:
    size = path.stat().st_size
    with open(path, "rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        return stream.read(min(length, size)).decode("utf-8", errors="replace")


def readings(text: str) -> tuple[str, ...]:
    """The text, its lines joined and its escapes undone, and what is encoded in it; each reading once."""
    found, latest = dict.fromkeys(views(text)), views(text)
    for _ in range(_DEPTH):
        decoded = [view for one in latest for inner in _decoded(one) for view in views(inner)]
        latest = tuple(one for one in dict.fromkeys(decoded) if one not in found)
        found |= dict.fromkeys(latest)
    return tuple(found)


def _decoded(text: str) -> Iterator[str]:
    """Texts that stand in base64 or hexadecimal in this one."""
    for match in _BASE64.finditer(text):
        packed = match.group().rstrip("=").translate(str.maketrans("-_", "+/"))[:_DECODED_BYTES]
        try:
            data = base64.b64decode(packed + "=" * (-len(packed) % 4))
        except (binascii.Error, ValueError):
            continue
        if readable := _readable(data):
            yield readable
    for match in _HEX.finditer(text):
        if readable := _readable(bytes.fromhex(match.group()[:_DECODED_BYTES])):
            yield readable


def _readable(data: bytes) -> str:
    """The bytes as text, if all of them are; a digest or a word that only looks encoded is not."""
    printable = all(32 <= byte < 127 or byte in (9, 10, 13) for byte in data)
    return data.decode("ascii") if data and printable else ""
