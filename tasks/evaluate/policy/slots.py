"""The slots of a replay: what the draft proposed at every anchor, how sure it was, and what was right.

Letters: A anchors, K positions of the block.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tasks.errors import StageInputError

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

SUFFIX = ".slots.safetensors"
_TYPES = {"F32": np.float32, "F64": np.float64, "U8": np.uint8, "BOOL": np.uint8, "I64": np.int64}
_HINT = "delete it and evaluate again: replay writes it anew"


@dataclass(frozen=True)
class Slots:
    """Every slot of a replay, in float64.

    A slot is `known` as far as the answer reaches; beyond it `right` is False.
    """

    confidence: Floats | None
    """`[A, K]`, logits of the confidence head; None without a usable head."""
    overlap: Floats
    """`[A, K]`, 1 - total variation between the draft's and the target's distribution."""
    right: Bools
    """`[A, K]`, the drafted token is the target's greedy one."""
    known: Bools
    """`[A, K]`."""
    prompt: Ints
    """`[A]`, row of the prompt in the replay's file."""
    anchor: Ints
    """`[A]`, index of the anchor among the answer's tokens."""
    round: Bools
    """`[A]`, a round of the walk with all K draft tokens started here."""
    notes: tuple[str, ...] = ()

    @property
    def positions(self) -> int:
        """K."""
        return int(self.right.shape[1])

    @property
    def prefix_right(self) -> Bools:
        """`[A, K]`: this and all earlier tokens of the block were accepted."""
        return np.logical_and.accumulate(self.right, axis=1)


def slots_beside(rows_file: Path) -> Path:
    """Where replay writes the slots of a file of rows (`x.jsonl` -> `x.slots.safetensors`)."""
    return rows_file.with_name(rows_file.name.removesuffix(".jsonl") + SUFFIX)


def read_slots(path: Path) -> Slots:
    """Read and check a slots file.

    Raises:
        StageInputError: The file is missing, damaged, or its tensors do not fit each other.
    """
    tensors = _tensors(path)
    missing = {"right", "known", "prompt", "anchor", "round"} - set(tensors)
    if missing:
        raise _refused(path, f"lacks {', '.join(sorted(missing))}")
    shape = tensors["right"].shape
    if len(shape) != 2 or shape[1] < 1:
        raise _refused(path, f"holds 'right' of shape {shape}, not [anchors, positions]")
    for name, value in tensors.items():
        wanted = shape[:1] if name in ("prompt", "anchor", "round") else shape
        if value.shape != wanted:
            raise _refused(path, f"holds '{name}' of shape {value.shape} beside 'right' of {shape}")
    known = np.logical_and.accumulate(tensors["known"] > 0, axis=1)
    confidence, notes = _usable(tensors.get("confidence"))
    overlap = tensors.get("overlap", np.full(shape, np.nan))
    return Slots(
        confidence=confidence,
        overlap=overlap.astype(np.float64),
        right=(tensors["right"] > 0) & known,
        known=known,
        prompt=tensors["prompt"].astype(np.int64),
        anchor=tensors["anchor"].astype(np.int64),
        round=tensors["round"] > 0,
        notes=notes,
    )


def _usable(confidence: NDArray[np.float64] | None) -> tuple[Floats | None, tuple[str, ...]]:
    if confidence is None:
        return None, ("the draft has no confidence head: nothing to calibrate or to schedule by",)
    bad = int((~np.isfinite(confidence)).sum())
    if bad:
        return None, (f"the confidence head gave {bad} of {confidence.size} values that are not finite",)
    return confidence.astype(np.float64), ()


def _tensors(path: Path) -> dict[str, NDArray[np.float64]]:
    """Name -> array. The format is a length, a JSON header and plain bytes; numpy reads it without torch."""
    try:
        data = path.read_bytes()
        (length,) = struct.unpack_from("<Q", data)
        header = json.loads(data[8 : 8 + length])
        found = {}
        for name, entry in header.items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                body = np.frombuffer(data[8 + length + begin : 8 + length + end], _TYPES[entry["dtype"]])
                found[name] = body.reshape(entry["shape"])
        return found
    except OSError as error:
        raise _refused(path, f"cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise _refused(path, f"is not a whole safetensors file: {error}") from None


def _refused(path: Path, what: str) -> StageInputError:
    return StageInputError(f"the replay's slots file {what}", where=str(path), hint=_HINT)


def prompt_keys(slots: Slots, rows_file: Path) -> list[str]:
    """One text for each row of the replay's file that says which prompt it is: its tokens, or its number."""
    count = int(slots.prompt.max()) + 1 if len(slots.prompt) else 0
    keys = [str(number) for number in range(count)]
    try:
        lines = rows_file.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines[:count]):
            keys[number] = json.dumps(json.loads(line)["prompt_ids"])
    except (OSError, ValueError, KeyError, TypeError):
        return [str(number) for number in range(count)]
    return keys


def fit_half(keys: list[str]) -> Bools:
    """`[prompts]`: whether a prompt belongs to the half that temperatures are fitted on.

    Chosen by a hash of the prompt: neither its place nor other prompts change its half.
    """
    return np.array([hashlib.sha256(key.encode()).digest()[0] % 2 == 0 for key in keys], dtype=bool)
