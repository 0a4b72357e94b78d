"""What a target's `config.json` says, read without torch or Transformers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.errors import UsageError

# Sizes that a multimodal wrapper may state twice; two different values would make the draft's shape a guess.
_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")


@dataclass(frozen=True)
class TargetConfig:
    """Shape of a target's language model; `raw` is the whole `config.json`."""

    folder: Path
    architecture: str
    hidden_size: int
    num_hidden_layers: int
    vocab_size: int
    intermediate_size: int | None
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    tie_word_embeddings: bool
    max_position_embeddings: int | None
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    raw: dict[str, Any]

    @property
    def text(self) -> dict[str, Any]:
        """The language model's own section: `text_config` of a multimodal wrapper, else everything."""
        return text_section(self.raw)


def text_section(raw: dict[str, Any]) -> dict[str, Any]:
    section = raw.get("text_config")
    return section if isinstance(section, dict) else raw


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in `path`.

    Raises:
        UsageError: The file is missing, unreadable, or not a JSON object.
    """
    hint = "point target.model at a complete folder in Hugging Face format"
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"the target has no {path.name}", where=str(path), hint=hint) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path.name} cannot be read: {error}", where=str(path), hint=hint) from None
    if not isinstance(value, dict):
        raise UsageError(f"{path.name} is not a JSON object", where=str(path), hint=hint)
    return value


def read_target_config(folder: Path) -> TargetConfig:
    """Read the target's shape; a nested `text_config` wins, if nothing outside it disagrees.

    Raises:
        UsageError: No `config.json`, a size is missing, or the wrapper and its text section disagree.
    """
    path = folder / "config.json"
    raw = read_json(path)
    text = text_section(raw)
    sizes = {name: _size(name, raw, text, path) for name in _SIZES}
    heads = sizes["num_attention_heads"]
    architectures = raw.get("architectures") or text.get("architectures") or []
    bos, eos = _special_ids(folder, raw, text)
    return TargetConfig(
        folder=folder,
        architecture=str(architectures[0]) if architectures else "",
        hidden_size=sizes["hidden_size"],
        num_hidden_layers=sizes["num_hidden_layers"],
        vocab_size=sizes["vocab_size"],
        intermediate_size=text.get("intermediate_size"),
        num_attention_heads=heads,
        num_key_value_heads=int(text.get("num_key_value_heads") or heads),
        head_dim=int(text.get("head_dim") or sizes["hidden_size"] // heads),
        tie_word_embeddings=bool(text.get("tie_word_embeddings", raw.get("tie_word_embeddings", False))),
        max_position_embeddings=text.get("max_position_embeddings"),
        bos_token_id=bos,
        eos_token_ids=eos,
        raw=raw,
    )


def _size(name: str, raw: dict[str, Any], text: dict[str, Any], path: Path) -> int:
    inner, outer = text.get(name), raw.get(name)
    if text is not raw and inner is not None and outer is not None and inner != outer:
        raise UsageError(
            f"the target's config is ambiguous: {name} is {outer} at the top and {inner} in text_config",
            where=f"{path}: {name}",
            hint="keep one of the two values, the language model's",
        )
    value = inner if inner is not None else outer
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        found = "missing" if value is None else repr(value)
        raise UsageError(
            f"the target's config has no usable {name} ({found})",
            where=f"{path}: {name}",
            hint="use a decoder language model in Hugging Face format",
        )
    return value


def _special_ids(
    folder: Path, raw: dict[str, Any], text: dict[str, Any]
) -> tuple[int | None, tuple[int, ...]]:
    """BOS and EOS ids as the engine sees them: `generation_config.json` overrides `config.json`."""
    path = folder / "generation_config.json"
    generation = read_json(path) if path.exists() else {}

    def first(name: str) -> Any:
        found = (section.get(name) for section in (generation, text, raw))
        return next((value for value in found if value is not None), None)

    bos, eos = first("bos_token_id"), first("eos_token_id")
    eos_ids = () if eos is None else tuple(eos) if isinstance(eos, list) else (eos,)
    return (bos[0] if isinstance(bos, list) else bos), eos_ids
