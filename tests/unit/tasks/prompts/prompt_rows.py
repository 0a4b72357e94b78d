"""Rows, files and profiles that the tests of prompts share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from profiles.schema import Profile
from tasks.prompts.load import PromptSet, load_prompts


def user(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def good(count: int, word: str = "topic") -> list[dict[str, Any]]:
    """Rows that are not alike."""
    return [user(f"tell me everything about {word} number {i} please, in {i} words") for i in range(count)]


def chat(*texts: str, system: str = "", **extra: Any) -> dict[str, Any]:
    """A conversation whose turns alternate, the user's first."""
    messages = [{"role": "system", "content": system}] if system else []
    messages += [
        {"role": "assistant" if place % 2 else "user", "content": text} for place, text in enumerate(texts)
    ]
    return {"messages": messages, **extra}


def write(path: Path, rows: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def profile_of(folder: Path, **prompts: Any) -> Profile:
    """A profile with the folders `train` and `evaluate` below `folder`."""
    prompts.setdefault("train", (str(folder / "train"),))
    prompts.setdefault("evaluate", (str(folder / "evaluate"),))
    if not (folder / "evaluate").exists():
        write(folder / "evaluate" / "qa-eval.jsonl", [user("an unrelated question for the end")])
    return Profile.model_validate(
        {"name": "t", "target": {"model": "m", "aux_layer_ids": [1]}, "prompts": prompts}
    )


def load(folder: Path, rows: list[Any], **prompts: Any) -> PromptSet:
    """What a profile makes of these training rows."""
    write(folder / "train" / "qa.jsonl", rows)
    return load_prompts(profile_of(folder, **prompts))
