"""How often each token occurs in the training split: the draft vocabulary is chosen from it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from tasks.stage import write_atomic
from tasks.stream.log import TOKEN_IDS, HiddenStateLog

ANSWER = "answer"
ALL = "all"


def write_token_counts(log_dir: Path, path: Path) -> None:
    """Count token ids of the train split and write `{"answer": {id: count}, "all": {id: count}}`.

    `answer` counts all generated tokens, the last one included; `all` adds the prompts.
    """
    from safetensors import safe_open

    answer: Counter[int] = Counter()
    everything: Counter[int] = Counter()
    for entry in HiddenStateLog(log_dir).entries("train"):
        with safe_open(str(log_dir / entry.file_name), framework="pt") as tensors:
            prompt = tensors.get_tensor(TOKEN_IDS)[: entry.prompt_tokens].tolist()
        answer.update(entry.answer_ids)
        everything.update(prompt)
        everything.update(entry.answer_ids)
    counts = {ANSWER: _rows(answer), ALL: _rows(everything)}
    write_atomic(path, json.dumps(counts, separators=(",", ":")))


def _rows(counts: Counter[int]) -> dict[str, int]:
    return {str(token): count for token, count in sorted(counts.items())}


def read_token_counts(path: Path) -> dict[str, Counter[int]]:
    """What `write_token_counts` wrote: `answer` and `all`, token id -> count."""
    raw = json.loads(path.read_text(encoding="utf-8"))
    return {name: Counter({int(token): n for token, n in raw[name].items()}) for name in (ANSWER, ALL)}
