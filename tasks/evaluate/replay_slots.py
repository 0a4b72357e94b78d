"""The slots of a replay in one safetensors file, written as they come: memory does not grow with the answers.

Tensors, for A anchors of all prompts and K drafted tokens:

* `confidence [A, K]` float32: logit of the confidence head before the sigmoid; absent without a head.
* `overlap [A, K]` float32: `1 - TV` of draft and target at temperature 1, with the answer's tokens before the
  slot; absent where it was not computed.
* `right [A, K]`, `known [A, K]` uint8: the drafted token is the target's; the answer reaches that far.
* `prompt [A]` int64: row number in the replay's JSONL. `anchor [A]` int64: answer token, from 0.
* `round [A]` uint8: the walk with all K tokens started a round there.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO

import torch
from torch import Tensor

from tasks.evaluate.replay_pass import Blocks

_TYPES = {torch.float32: "F32", torch.int64: "I64", torch.uint8: "U8"}
_WIDE = ("confidence", "overlap", "right", "known")


class SlotsWriter:
    """Appends the slots of one document after another; the file appears on `finish`, complete.

    Args:
        path: The file to write.
        tokens: K.
    """

    def __init__(self, path: Path, tokens: int):
        self._path, self._tokens = path, tokens
        self._rows = 0
        self._types: dict[str, str] = {}
        self._files: dict[str, IO[bytes]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> SlotsWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        for name in self._files:
            self._part(name).unlink(missing_ok=True)

    def add(self, prompt: int, blocks: Blocks, rounds: Sequence[int]) -> None:
        """Append a document.

        Args:
            prompt: Its row in the JSONL.
            rounds: Anchors (answer tokens) at which the walk started a round.
        """
        count = blocks.tokens.shape[0]
        started = torch.zeros(count, dtype=torch.uint8)
        started[list(rounds)] = 1
        rows = {
            "confidence": blocks.confidence,
            "overlap": blocks.overlap,
            "right": blocks.right.to(torch.uint8),
            "known": blocks.known.to(torch.uint8),
            "prompt": torch.full((count,), prompt, dtype=torch.int64),
            "anchor": torch.arange(count),
            "round": started,
        }
        for name, value in rows.items():
            if value is not None:
                self._append(name, value)
        self._rows += count

    def finish(self) -> None:
        """Put the parts behind one header. A replay without anchors gives tensors of no rows."""
        header, at = {}, 0
        for name, kind in self._types.items():
            size = self._part(name).stat().st_size if self._flushed(name) else 0
            shape = [self._rows, self._tokens] if name in _WIDE else [self._rows]
            header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + size]}
            at += size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        temporary = self._path.with_name(f".{self._path.name}.tmp")
        with open(temporary, "wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            for name in self._types:
                with open(self._part(name), "rb") as part:
                    shutil.copyfileobj(part, out)
            out.flush()
            os.fsync(out.fileno())
        os.replace(temporary, self._path)

    def _append(self, name: str, value: Tensor) -> None:
        if name not in self._files:
            self._files[name] = self._stack.enter_context(open(self._part(name), "wb"))  # noqa: SIM115
            self._types[name] = _TYPES[value.dtype]
        self._files[name].write(value.contiguous().numpy().tobytes())

    def _flushed(self, name: str) -> bool:
        self._files[name].flush()
        return True

    def _part(self, name: str) -> Path:
        return self._path.with_name(f".{self._path.name}.{name}.part")
