"""Refusals about files: only what a draft consists of, within the limits, and no rows of training data."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from tasks.publish.check_folder import MANIFEST, REQUIRED_FILES, read_tensors
from tasks.publish.refusals.models import Material, Refusal

_EXPECTED = re.compile(
    r"(?:config\.json|README\.md|LICENSE(?:\.md|\.txt)?|serve\.json|serve\.sh|verify\.py|manifest\.json"
    r"|speculation_profile\.json|model\.safetensors\.index\.json|model(?:-\d{5}-of-\d{5})?\.safetensors"
    r"|cpu/[\w.-]+\.py|plots/[\w.-]+\.png)"
)
_ROW_FILES = frozenset(
    {
        ".jsonl", ".ndjson", ".parquet", ".arrow", ".feather", ".csv", ".tsv", ".zst", ".gz",
        ".lmdb", ".db", ".sqlite",
    }
)  # fmt: skip
_ROW_TENSORS = frozenset({"hidden_states", "token_ids", "input_ids", "loss_mask"})
_ROW_KEYS = frozenset(
    {
        "messages", "conversation", "conversations", "prompt", "prompts", "completion", "answer",
        "answers", "token_ids", "prompt_ids",
    }
)  # fmt: skip
_JSON_BYTES = 64 * 2**20


def file_refusals(material: Material) -> Iterator[Refusal]:
    """Everything that speaks against the set of files."""
    yield from limit_refusals(material)
    rows = [path for path in material.files if not path.is_symlink() and holds_rows(path)]
    if rows and not material.profile.publish.training_rows:
        for path in rows:
            yield Refusal(
                "it holds rows of training data, and nobody has permitted to publish them",
                material.name(path),
                "remove it, or set publish.training_rows: true if their owners agree",
            )
    for path in material.files:
        if path not in rows and not _EXPECTED.fullmatch(material.name(path)):
            yield Refusal(
                "it belongs to no published draft",
                material.name(path),
                f"remove it; a draft consists of {', '.join((*REQUIRED_FILES, MANIFEST))} and weights",
            )


def limit_refusals(material: Material) -> Iterator[Refusal]:
    """Files that are too large, or too many, for the hub; a local folder has no limits but the disk's."""
    hub = material.profile.publish.hub
    if hub is None:
        return
    if len(material.files) > hub.max_files:
        yield Refusal(
            f"{len(material.files)} files, more than {hub.max_files}",
            "publish.hub.max_files",
            "export the weights in fewer files, or raise the limit",
        )
    for path in material.files:
        size = path.lstat().st_size
        if size > hub.max_file_bytes:
            yield Refusal(
                f"{size:,} bytes, more than {hub.max_file_bytes:,}",
                material.name(path),
                "export the weights in several files, or raise publish.hub.max_file_bytes",
            )


def holds_rows(path: Path) -> bool:
    """Whether a file holds prompts, answers, tokens or hidden states."""
    if path.suffix.lower() in _ROW_FILES:
        return True
    if path.suffix == ".safetensors":
        try:
            return bool(_ROW_TENSORS & read_tensors(path).keys())
        except (OSError, ValueError, KeyError, TypeError):
            return False  # damaged weights are a refusal of their own
    if path.suffix == ".json" and path.stat().st_size <= _JSON_BYTES:
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        rows = value if isinstance(value, list) else [value]
        return any(isinstance(row, dict) and _ROW_KEYS & row.keys() for row in rows)
    return False
