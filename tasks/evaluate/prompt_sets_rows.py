"""Rows of public prompt sets as prompts of this project's form.

Forms, as the sets' own tools read them:

* speculator_benchmarks: `<subset>.jsonl`, rows with `prompt`.
* SPEED-Bench: Parquet with `question_id`, `category` and `turns` (texts); its preparation program writes
  JSON lines with `messages` instead. Texts that their owners do not pass on are placeholders.
* LongBench-v2: `data.json`, a list of rows: `_id`, `length`, `context`, `question`, `choice_A` to `choice_D`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"
_WORD = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class Converted:
    """One row: its prompt, or None for a placeholder."""

    domain: str
    prompt: dict[str, Any] | None


def plain_rows(files: Iterable[Path]) -> Iterator[Converted]:
    """One prompt a row; the file's name makes the domain."""
    for path in files:
        domain = f"spec_{_WORD.sub('_', path.stem)}"
        for number, row in enumerate(_json_lines(path), start=1):
            yield Converted(domain, _prompt(f"{domain}-{number}", domain, str(row["prompt"]), row))


def speed_rows(files: Iterable[Path]) -> Iterator[Converted]:
    """The first user turn of each row; its category is the domain."""
    for path in files:
        rows = _parquet(path) if path.suffix == ".parquet" else _json_lines(path)
        for row in rows:
            domain = f"speed_{_WORD.sub('_', str(row['category']))}"
            text = _first_turn(row.get("messages") or row["turns"])
            prompt = _prompt(f"speed-{row['question_id']}", domain, text)
            yield Converted(domain, None if PLACEHOLDER in text else prompt)


def _first_turn(turns: Any) -> str:
    """Text of the first user turn, of plain texts or of messages."""
    for turn in turns:
        if isinstance(turn, str):
            return turn
        if turn.get("role", "user") == "user":
            return str(turn["content"])
    raise ValueError("a row without a user turn")


def longbench_rows(files: Iterable[Path]) -> Iterator[Converted]:
    """Context, question and choices in one turn; the set's length class is the domain."""
    for path in files:
        for row in json.loads(path.read_text(encoding="utf-8")):
            domain = f"longbench_{_WORD.sub('_', str(row['length']))}"
            choices = "\n".join(f"({letter}) {row[f'choice_{letter}']}" for letter in "ABCD")
            text = (
                f"{row['context']}\n\nAnswer a question about the text above.\n\n{row['question']}\n"
                f"{choices}\n\nName the right choice and say why."
            )
            yield Converted(domain, _prompt(f"longbench-{row['_id']}", domain, text))


def _prompt(identity: str, domain: str, text: str, row: Mapping[str, Any] | None = None) -> dict[str, Any]:
    prompt: dict[str, Any] = {
        "id": identity,
        "domain": domain,
        "messages": [{"role": "user", "content": text}],
    }
    if row is not None and row.get("tools"):
        prompt["tools"] = row["tools"]
    return prompt


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    with open(path, encoding="utf-8") as stream:
        for line in stream:
            if line.strip():
                yield json.loads(line)


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=512):
            yield from batch.to_pylist()
