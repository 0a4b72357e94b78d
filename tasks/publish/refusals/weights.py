"""Refusals about weights: whole, finite, safetensors, and the bytes that were evaluated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from tasks.publish.check_folder import read_tensors, required_tensors
from tasks.publish.refusals.models import Material, Refusal
from tasks.stage import canonical, sha256_file, sha256_text

_EXPONENTS = {"F32": (np.uint32, 0x7F800000), "BF16": (np.uint16, 0x7F80), "F16": (np.uint16, 0x7C00)}
_CHUNK_BYTES = 1 << 22
_OTHER_WEIGHTS = frozenset(
    {
        ".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".gguf", ".ggml", ".npz",
        ".npy", ".onnx", ".h5", ".msgpack", ".tflite", ".pdparams",
    }
)  # fmt: skip
_PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK\x03\x04", b"GGUF")
_AGAIN = "train it again"


def weight_refusals(material: Material) -> Iterator[Refusal]:
    """Everything that speaks against the folder's weights."""
    yield from format_refusals(material)
    yield from tensor_refusals(material)
    yield from evaluated_refusals(material)


def format_refusals(material: Material) -> Iterator[Refusal]:
    """Weights in a format that can run code when it is loaded, by name or by their first bytes."""
    for path in material.files:
        if path.is_symlink():
            yield Refusal("it is a link to somewhere else", material.name(path), "copy the file itself")
        elif path.suffix.lower() in _OTHER_WEIGHTS or _first_bytes(path).startswith(_PICKLES):
            yield Refusal(
                "it is no safetensors file, and may run code when it is loaded",
                material.name(path),
                "export the weights as .safetensors and leave this file out",
            )


def _first_bytes(path: Path) -> bytes:
    with open(path, "rb") as stream:
        return stream.read(4)


def tensor_refusals(material: Material) -> Iterator[Refusal]:
    """Tensors that are missing, damaged or not finite."""
    files = sorted(material.folder.glob("*.safetensors"))
    if not files:
        beside = sorted(p.name for p in material.draft_dir.iterdir() if p.suffix in _OTHER_WEIGHTS)
        what = f"the draft has no weights in safetensors{f', only {beside[0]}' if beside else ''}"
        yield Refusal(what, "model.safetensors", "export the weights as .safetensors")
        return
    found: set[str] = set()
    for path in files:
        try:
            found.update(read_tensors(path))
            broken = first_not_finite(path)
        except (OSError, ValueError, KeyError, TypeError) as error:
            yield Refusal(f"it is damaged: {error}", path.name, _AGAIN)
            continue
        if broken:
            yield Refusal(f"tensor {broken} holds NaN or infinity", path.name, _AGAIN)
    try:
        missing = [name for name in required_tensors(material.config) if name not in found]
    except (KeyError, TypeError):
        return  # what config.json lacks is a refusal already
    if missing:
        yield Refusal("the draft lacks " + ", ".join(missing), "model.safetensors", _AGAIN)


def evaluated_refusals(material: Material) -> Iterator[Refusal]:
    """The bytes that training exported, the evaluation measured and the folder holds must be the same."""
    remedy = "run again from stage evaluate, and change nothing in 04-train/draft in between"
    known = material.draft.files
    for path in sorted(material.folder.glob("*.safetensors")):
        if path.name not in known:
            yield Refusal("it is not a file of the draft that was evaluated", path.name, remedy)
        elif sha256_file(path) != known[path.name]:
            yield Refusal("it is not the file that was evaluated: its SHA-256 differs", path.name, remedy)
    export = material.draft_dir / "config.json"
    if "config.json" in known and export.is_file() and sha256_file(export) != known["config.json"]:
        yield Refusal("it is not the configuration that was evaluated", "config.json", remedy)
    for name in sorted(n for n in known if n.endswith(".safetensors")):
        if not (material.folder / name).is_file():
            yield Refusal("a file of the draft that was evaluated is missing", name, remedy)
    detail = material.evaluation.arms_detail
    arm = detail.named(material.evaluation.decided) if detail else None
    measured = arm.conditions.draft if arm and arm.conditions else ""
    if measured and measured != sha256_text(canonical(dict(known))):
        yield Refusal("the engine was measured with another draft", "model.safetensors", remedy)


def first_not_finite(path: Path) -> str | None:
    """Name of the first floating tensor with NaN or infinity: all exponent bits set. Reads in pieces."""
    with open(path, "rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(length))
        for name, entry in header.items():
            if name == "__metadata__" or entry["dtype"] not in _EXPONENTS:
                continue
            kind, mask = _EXPONENTS[entry["dtype"]]
            first, last = entry["data_offsets"]
            stream.seek(8 + length + first)
            pieces = _pieces(stream, last - first)
            if any(np.any((np.frombuffer(piece, kind) & kind(mask)) == mask) for piece in pieces):
                return str(name)
    return None


def _pieces(stream: BinaryIO, size_bytes: int) -> Iterator[bytes]:
    """The next `size_bytes` of a file, in pieces that fit into memory."""
    while size_bytes > 0:
        piece = stream.read(min(_CHUNK_BYTES, size_bytes))
        size_bytes -= len(piece) or size_bytes
        yield piece
