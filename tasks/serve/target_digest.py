"""Digests that say exactly which target was served."""

from __future__ import annotations

import json
from pathlib import Path

from tasks.serve.cache_folder import cache_root
from tasks.serve.target_config import read_json
from tasks.serve.target_weights import weight_files
from tasks.stage import canonical, sha256_file, sha256_text, write_atomic

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tiktoken.model",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "tokenizer_config.json",
)


def chat_template(folder: Path) -> str | None:
    """The target's chat template, wherever its tokenizer keeps it; None if it has none."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8") or None
    for name in ("tokenizer_config.json", "chat_template.json"):
        if (folder / name).is_file():
            template = read_json(folder / name).get("chat_template")
            if template:
                return template if isinstance(template, str) else json.dumps(template, sort_keys=True)
    return None


def template_digest(folder: Path) -> str:
    """SHA-256 of the chat template's text."""
    return sha256_text(chat_template(folder) or "")


def tokenizer_digest(folder: Path) -> str:
    """SHA-256 over the tokenizer's files."""
    files = {name: sha256_file(folder / name) for name in TOKENIZER_FILES if (folder / name).is_file()}
    return sha256_text(canonical(files))


def model_digest(folder: Path) -> str:
    """SHA-256 over config, tokenizer, chat template and weights.

    Weights are hashed once: the result is kept in the cache under the file's path, size and time.
    """
    configs = [folder / name for name in ("config.json", "generation_config.json")]
    parts = {
        "files": {path.name: sha256_file(path) for path in configs if path.is_file()},
        "tokenizer": tokenizer_digest(folder),
        "template": template_digest(folder),
        "weights": {p.name: [p.stat().st_size, _weights_digest(p)] for p in weight_files(folder)},
    }
    return sha256_text(canonical(parts))


def _weights_digest(path: Path) -> str:
    status = path.stat()
    key = [str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ino]
    known = cache_root() / "digests" / sha256_text(canonical(key))
    if known.is_file():
        text = known.read_text(encoding="ascii").strip()
        if len(text) == 64:
            return text
    digest = sha256_file(path)
    try:
        known.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(known, digest)
    except OSError:
        # A cache that cannot be written costs the next run a few seconds, nothing else.
        pass
    return digest
