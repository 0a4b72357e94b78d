"""A draft that nobody trained in this run: a local folder, or a repository on a hub."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.errors import UsageError
from tasks.evaluate.hub import fetch, is_repository
from tasks.serve.target_weights import read_header
from tasks.stage import sha256_file
from tasks.train.draft_kind import latent_attention
from tasks.train.models import DraftCheckpoint

FIELD = "--draft"
_FILES = ("*.safetensors", "*.json")
_FORM = "the folder must hold config.json and the weights of a DSpark draft in Speculators format"


@dataclass(frozen=True)
class FoundDraft:
    """A draft on this machine, and what its configuration says."""

    folder: Path
    name: str
    """What the user called it."""
    revision: str | None
    """Commit on the hub; None for a folder."""
    layer_ids: tuple[int, ...]
    """Layers of the target that it reads, in vLLM's numbering."""
    draft_tokens: int
    """K: tokens that it drafts in a round."""
    draft_vocab_size: int

    @property
    def origin(self) -> str:
        """Name and revision, for people."""
        return f"{self.name} at revision {self.revision}" if self.revision else self.name

    def overrides(self) -> dict[str, Any]:
        """What the profile must say so that the target is captured, and the draft served, as it needs."""
        return {
            "target": {"aux_layer_ids": list(self.layer_ids)},
            "train": {"draft": {"block_size": self.draft_tokens}},
        }


def find_draft(text: str) -> FoundDraft:
    """The draft that a user names.

    Args:
        text: Folder, or `OWNER/NAME` or `OWNER/NAME@REVISION` on a hub; a folder that exists comes first.

    Raises:
        UsageError: Neither is there, or it is no DSpark draft.
        ServiceError: The hub cannot be reached.
    """
    path = Path(text).expanduser()
    if path.is_dir():
        return _read(path.absolute(), text, None)
    repository, _, revision = text.partition("@")
    if not is_repository(repository):
        raise UsageError(
            f"there is no draft folder '{text}'",
            where=FIELD,
            hint="give a folder in Speculators format, or OWNER/NAME of a repository on a hub",
        )
    found = fetch(repository, kind="model", patterns=_FILES, revision=revision or None, field=FIELD)
    return _read(found.folder, repository, found.revision)


def read_found(folder: Path, name: str, revision: str | None) -> FoundDraft:
    """A draft that an earlier attempt found; the same errors as `find_draft`."""
    if not folder.is_dir():
        raise UsageError(
            f"the draft of this run, '{folder}', is gone",
            where=FIELD,
            hint="put it back, or begin a new run: retrain-dspark evaluate --draft ...",
        )
    return _read(folder, name, revision)


def _read(folder: Path, name: str, revision: str | None) -> FoundDraft:
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise ValueError("it is not an object")
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the draft's config.json cannot be read: {error}", where=_at(name), hint=_FORM
        ) from None
    kind = config.get("speculators_model_type")
    latent = latent_attention(config)
    if latent:
        raise UsageError(
            f"it cannot be replayed: {latent}",
            where=_at(name),
            hint="measure it on the engine as an arm of its own: evaluate.live.own_arms of the profile",
        )
    if kind != "dspark":
        raise UsageError(
            f"it is not a DSpark draft: speculators_model_type is {kind!r}", where=_at(name), hint=_FORM
        )
    layers: Any = config.get("aux_hidden_state_layer_ids")
    block: Any = config.get("block_size")
    if not isinstance(block, int) or block < 1 or not _are_layers(layers):
        raise UsageError(
            f"the draft's config.json has block_size {block!r} and aux_hidden_state_layer_ids {layers!r}",
            where=_at(name),
            hint="both must be there: a number, and a rising list of layers",
        )
    if not list(folder.glob("*.safetensors")):
        raise UsageError("the draft has no weights (*.safetensors)", where=_at(name), hint=_FORM)
    return FoundDraft(
        folder=folder,
        name=name,
        revision=revision,
        layer_ids=tuple(layers),
        draft_tokens=proposed_tokens(config, block),
        draft_vocab_size=int(config.get("draft_vocab_size") or 0),
    )


def _at(name: str) -> str:
    return f"{FIELD}: {name}"


def _are_layers(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in value)
        and value == sorted(set(value))
    )


def proposed_tokens(config: dict[str, Any], block: int) -> int:
    """K as the draft proposes it; a draft that does not sample from its anchor's slot has one less."""
    methods = (config.get("speculators_config") or {}).get("proposal_methods") or [{}]
    proposed = methods[0].get("speculative_tokens")
    if isinstance(proposed, int) and 1 <= proposed <= block:
        return proposed
    return block if config.get("sample_from_anchor", False) else max(1, block - 1)


def checkpoint_of(found: FoundDraft) -> DraftCheckpoint:
    """The draft as stage evaluate takes one; nothing was trained, and it says so."""
    weights = sorted(found.folder.glob("*.safetensors"))
    shapes = [tensor.shape for path in weights for tensor in read_header(path).values()]
    return DraftCheckpoint(
        path=str(found.folder),
        files={path.name: sha256_file(path) for path in (found.folder / "config.json", *weights)},
        step=0,
        steps=0,
        epochs=0,
        parameters=sum(math.prod(shape) for shape in shapes),
        trained_parameters=0,
        draft_vocab_size=found.draft_vocab_size,
        block_size=found.draft_tokens,
        held_out_eal=None,
        metrics={},
        config={},
        notes=(f"not trained in this run: {found.origin}",),
    )
