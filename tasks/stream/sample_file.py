"""One sample as a safetensors file: written without a copy and hashed on the way, read and checked in one go.

The file's bytes follow from the tensors alone, so its XXH3-128 is also the digest of their contents. XXH3
because it runs at memory speed, where SHA-256 takes longer than the disk; it tells of damage, not of forgery.

Letters: T tokens, L captured layers, H hidden size.
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from tasks.stream.durable import remove, write_all

if TYPE_CHECKING:
    import torch

HIDDEN_STATES = "hidden_states"
TOKEN_IDS = "token_ids"
_LENGTH = struct.Struct("<Q")
_CODES = {"float64": "F64", "float32": "F32", "bfloat16": "BF16", "float16": "F16", "int64": "I64"}
_NAMES = {code: name for name, code in _CODES.items()}
# A piece stays in the processor's cache between its hash and its write.
_PIECE_BYTES = 2**20


class SampleDamaged(Exception):
    """The file is not what its index line says; the text says how."""


@dataclass(frozen=True)
class SampleBytes:
    """A sample's file before it is written: views of the tensors' own memory.

    Args:
        parts: Header, token ids, hidden states, in the order of the file. The ids come first, because they
            need 8-byte alignment and the states may have an odd number of bytes.
        size: Bytes in all.
    """

    parts: tuple[memoryview, ...]
    size: int


def sample_bytes(hidden_states: torch.Tensor, token_ids: torch.Tensor) -> SampleBytes:
    """The file of `hidden_states [T, L, H]` and `token_ids [T]` (int64).

    Raises:
        ValueError: A type that the file does not know, or shapes that do not fit each other.
    """
    if hidden_states.ndim != 3 or tuple(token_ids.shape) != (hidden_states.shape[0],):
        raise ValueError(f"shapes {tuple(hidden_states.shape)} and {tuple(token_ids.shape)} are no sample")
    header: dict[str, Any] = {}
    views = []
    start = 0
    for name, tensor in ((TOKEN_IDS, token_ids), (HIDDEN_STATES, hidden_states)):
        view = _view(tensor)
        header[name] = {
            "dtype": _code(tensor),
            "shape": list(tensor.shape),
            "data_offsets": [start, start + len(view)],
        }
        start += len(view)
        views.append(view)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = memoryview(_LENGTH.pack(len(text)) + text)
    return SampleBytes((head, *views), len(head) + start)


def _code(tensor: torch.Tensor) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _CODES:
        raise ValueError(f"the log does not hold tensors of type {name}, only {', '.join(_CODES)}")
    return _CODES[name]


def _view(tensor: torch.Tensor) -> memoryview:
    """The tensor's bytes; no copy if it is contiguous and in main memory."""
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return memoryview(flat.numpy())


def write_open(path: str, sample: SampleBytes) -> tuple[int, str]:
    """Write a new file and leave it open; `sync_and_close` puts it on disk. A file that failed is gone again.

    Returns:
        Its descriptor, and its XXH3-128 as hexadecimal digits.

    Raises:
        OSError: The system did not take it.
    """
    digest = xxhash.xxh3_128()
    descriptor = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        for part in sample.parts:
            for start in range(0, len(part), _PIECE_BYTES):
                piece = part[start : start + _PIECE_BYTES]
                digest.update(piece)
                write_all(descriptor, piece)
    except BaseException:
        os.close(descriptor)
        remove(path)
        raise
    return descriptor, digest.hexdigest()


def sync_and_close(descriptor: int, sync: bool) -> None:
    """Close a written file, its contents on disk unless `sync` is False.

    Raises:
        OSError: The disk did not take it; the file is closed all the same.
    """
    try:
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_checked(path: Path, size: int, digest: str) -> dict[str, torch.Tensor]:
    """The tensors of a file, in memory of their own.

    Raises:
        OSError: It cannot be read.
        SampleDamaged: It has another size or other contents.
    """
    import numpy as np
    import torch

    with open(path, "rb", buffering=0) as stream:
        found = os.fstat(stream.fileno()).st_size
        if found != size:
            raise SampleDamaged(f"its file has {found:,} bytes, not {size:,}")
        data = np.empty(size, dtype=np.uint8)
        _read_all(stream.fileno(), data.data)
    if xxhash.xxh3_128_hexdigest(data.data) != digest:
        raise SampleDamaged("its contents differ from their checksum")
    length = _LENGTH.unpack_from(data.data)[0]
    begin = _LENGTH.size + length
    header = json.loads(data[_LENGTH.size : begin].tobytes())
    tensors = {}
    for name, spec in header.items():
        kind = getattr(torch, _NAMES[spec["dtype"]])
        start, end = spec["data_offsets"]
        tensors[name] = torch.from_numpy(data[begin + start : begin + end]).view(kind).view(spec["shape"])
    return tensors


def file_digest(path: Path) -> str:
    """XXH3-128 of a file's bytes, as hexadecimal digits."""
    digest = xxhash.xxh3_128()
    with open(path, "rb", buffering=0) as stream:
        while piece := stream.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def _read_all(descriptor: int, into: memoryview) -> None:
    done = 0
    while done < len(into):
        count = os.preadv(descriptor, [into[done:]], done)
        if not count:
            raise SampleDamaged(f"its file ends after {done:,} bytes")
        done += count
