"""How often each token occurs in the training split: the draft vocabulary is chosen from it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tasks.stage import write_atomic
from tasks.stream.log import HiddenStateLog

ANSWER = "answer"
ALL = "all"


def write_token_counts(log_dir: Path, path: Path) -> None:
    """Count token ids of the train split and write `{"answer": {id: count}, "all": {id: count}}`.

    `answer` counts all generated tokens, the last one included; `all` adds the prompts. Only the log's own
    list of ids is read, so that samples whose files are deleted count too.
    """
    answer, everything = _Counts(), _Counts()
    for entry in HiddenStateLog(log_dir).entries("train"):
        answer.add(entry.answer_ids)
        everything.add(entry.answer_ids)
        everything.add(entry.prompt_ids())
    counts = {ANSWER: answer.rows(), ALL: everything.rows()}
    write_atomic(path, json.dumps(counts, separators=(",", ":")))


class _Counts:
    """Counts token ids, many at a time: a log may hold a billion."""

    def __init__(self) -> None:
        self._counts: NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    def add(self, ids: Sequence[int]) -> None:
        found = np.bincount(np.asarray(ids, dtype=np.int64), minlength=len(self._counts))
        found[: len(self._counts)] += self._counts
        self._counts = found

    def rows(self) -> dict[str, int]:
        return {str(token): int(self._counts[token]) for token in np.flatnonzero(self._counts)}


def read_token_counts(path: Path) -> dict[str, Counter[int]]:
    """What `write_token_counts` wrote: `answer` and `all`, token id -> count."""
    raw = json.loads(path.read_text(encoding="utf-8"))
    return {name: Counter({int(token): n for token, n in raw[name].items()}) for name in (ANSWER, ALL)}
