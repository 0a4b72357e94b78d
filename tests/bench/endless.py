"""A target whose answers reach any length, and the prompts and fields of a profile for it.

Rows that compare speeds need answers of one length on both sides, whatever the model would have said.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from profiles.load import load_profile
from tasks.prompts.load import load_prompts
from tasks.serve.target_folder import resolve_target

LONGEST_PROMPT = 512
_NEVER_GENERATED = "<jupyter_script>"

Case = tuple[int, int]
"""Requests at once, answer length in tokens."""
Over = dict[str, Any]


def overrides(folder: Path, endless: Path, case: Case, longest: int, stream: Over | None = None) -> Over:
    """Fields over the laptop profile.

    Args:
        case: Of the client: requests at once, and their length.
        longest: Longest answer that the server allows, tokens.
        stream: Further fields of `stream`, or of `prompts` under `prompts`.
    """
    concurrency, length = case
    train, one = prompt_files(folder, concurrency)
    further = dict(stream or {})
    return {
        "target": {
            "model": str(endless),
            "source": {"kind": "path", "distribution": "", "version": "", "file": "", "sha256": ""},
            "max_model_len": longest + LONGEST_PROMPT,
        },
        "prompts": {
            "train": [str(train)],
            "evaluate": [str(one)],
            "train_per_domain": None,
            "evaluate_per_domain": None,
            **further.pop("prompts", {}),
        },
        "stream": {"concurrency": concurrency, "max_new_tokens": length, **further},
        "evaluate": {"replay_max_new_tokens": 2},
    }


def prompt_files(folder: Path, count: int) -> tuple[Path, Path]:
    """The first `count` training prompts of the laptop profile over all domains, and one to evaluate."""
    train, one = folder / f"first-{count}.jsonl", folder / "one.jsonl"
    if not train.exists():
        prompts = load_prompts(load_profile("laptop").profile).prompts
        chosen = [prompt for prompt in prompts if prompt.split == "train"]
        step = max(1, len(chosen) // count)
        lines = [
            json.dumps({"id": prompt.id, "domain": prompt.domain, "messages": prompt.turns()})
            for prompt in chosen[::step][:count]
        ]
        train.write_text("\n".join(lines) + "\n", encoding="utf-8")
        one.write_text('{"id": "one", "domain": "qa", "prompt": "Say hello."}\n', encoding="utf-8")
    return train, one


def endless_target(folder: Path) -> Path:
    """A copy of the laptop's target whose end token never comes; the weights are links.

    The chat template goes on writing the old end token, which from now on is a token like any other.
    """
    source, copy = resolve_target(load_profile("laptop").profile), folder / "endless"
    copy.mkdir()
    for file in source.iterdir():
        if file.suffix == ".safetensors":
            (copy / file.name).symlink_to(file)
        elif file.is_file():
            shutil.copyfile(file, copy / file.name)
    identity = _token_id(copy)
    for name in ("config.json", "generation_config.json"):
        _change(copy / name, eos_token_id=identity)
    _change(copy / "tokenizer_config.json", eos_token=_NEVER_GENERATED)
    if (copy / "special_tokens_map.json").exists():
        _change(copy / "special_tokens_map.json", eos_token=_NEVER_GENERATED)
    return copy


def _token_id(target: Path) -> int:
    tokens = json.loads((target / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    found = [int(token["id"]) for token in tokens if token["content"] == _NEVER_GENERATED]
    if not found:
        raise AssertionError(f"the target has no token {_NEVER_GENERATED} to take the end token's place")
    return found[0]


def _change(path: Path, **values: object) -> None:
    if path.exists():
        known = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**known, **values}), encoding="utf-8")
