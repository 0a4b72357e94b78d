"""Faults of a draft that its configuration shows: refused before anything is measured, with both values.

Engines load such drafts without a word and accept next to nothing: a shifted anchor, the layers of another
run, another target, other rotary settings. What only weights or a measurement can show is in
`draft_check_weights` and `draft_check_try`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict

from tasks.errors import StageInputError
from tasks.serve.target_config import TargetConfig, text_section
from tasks.train.models import DraftCheckpoint

CONFIG, CARD, SERVE, MANIFEST = "config.json", "README.md", "serve.json", "manifest.json"
ROPE_KEYS = ("rope_type", "rope_theta", "factor", "original_max_position_embeddings")


class TrainingRecord(BaseModel):
    """What is known of how a draft was trained; None where it is not."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str
    """Where it stands, in words."""
    sample_from_anchor: bool | None = None
    aux_layer_ids: tuple[int, ...] | None = None
    target: str | None = None
    digest: str | None = None
    """`model_digest` of the target."""
    first_right: float | None = None
    """Accuracy at the first draft token on held-out data."""
    first_places: int | None = None
    """Blocks that `first_right` was counted over."""
    first_conversations: int | None = None
    """Conversations that they are from."""
    first_error: float | None = None
    """Standard error of `first_right` over conversations."""
    tau: float | None = None
    """Acceptance length that it was published with, mean over domains."""
    rope_of_target: bool = False
    """The trainer took the target's rotary settings, as this pipeline's does."""


@dataclass(frozen=True)
class Expected:
    """What a draft is to be measured with.

    Args:
        names: Names of the target that are accepted; compared without organisation and case.
        layer_ids: Auxiliary layers in the hidden-state log, in vLLM's numbering.
        digest: `model_digest` of the target; a draft that states the same needs no matching name.
    """

    target: TargetConfig
    names: tuple[str, ...]
    layer_ids: tuple[int, ...]
    revision: str | None = None
    digest: str | None = None
    record: TrainingRecord | None = None


def record_of(draft: DraftCheckpoint) -> TrainingRecord:
    """The record of a draft that this run trained."""
    config, options = draft.config, draft.config.get("draft", {})
    anchor = options.get("sample_from_anchor")
    layers = config.get("aux_layer_ids")
    # Older trainers number the slots of a block, of which the first may be the anchor's.
    older = draft.metrics.get("position_1_acc" if anchor is False else "position_0_acc")
    places, conversations = (draft.metrics.get(f"held_out_{what}") for what in ("blocks", "conversations"))
    return TrainingRecord(
        source="the train stage",
        sample_from_anchor=anchor,
        aux_layer_ids=None if layers is None else tuple(layers),
        target=config.get("target"),
        first_right=draft.metrics.get("conditional_1_acc", older),
        first_places=None if places is None else int(places),
        first_conversations=None if conversations is None else int(conversations),
        first_error=draft.metrics.get("conditional_1_se"),
        rope_of_target=True,
    )


def record_beside(folder: Path) -> TrainingRecord | None:
    """What a published folder says of its draft; None where it says nothing that helps."""
    manifest, serve = _json(folder / MANIFEST), _json(folder / SERVE)
    target = manifest.get("target") or serve.get("target") or {}
    values = _card_lengths(folder / CARD)
    if not target and not values:
        return None
    return TrainingRecord(
        source="its model card",
        target=target.get("name"),
        digest=target.get("digest"),
        tau=sum(values) / len(values) if values else None,
        rope_of_target=bool(manifest.get("captures")),
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _card_lengths(path: Path) -> list[float]:
    """Acceptance lengths in a card's front matter, a domain each; none if it cannot be read."""
    try:
        front = yaml.safe_load(path.read_text(encoding="utf-8").split("---")[1])
        results = [one for model in front.get("model-index") or () for one in model.get("results") or ()]
        metrics = [one for result in results for one in result.get("metrics") or ()]
        return [float(one["value"]) for one in metrics if one.get("type") == "acceptance_length"]
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, yaml.YAMLError):
        return []


def check_config(draft_dir: Path, expected: Expected) -> None:
    """Refuse a draft whose configuration does not fit the target, the captures or its own training.

    Raises:
        StageInputError: Naming everything that is wrong, with the draft's value and the one expected.
    """
    path = draft_dir / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StageInputError(
            f"the draft's {CONFIG} cannot be read: {error}",
            where=str(path),
            hint="the folder must hold a DSpark draft in Speculators format",
        ) from None
    faults = list(config_faults(config if isinstance(config, dict) else {}, expected))
    if faults:
        raise StageInputError(
            "the draft cannot be right for this target: " + "; ".join(faults),
            where=str(path),
            hint="export or download the draft again, or measure it with the target that it was trained for",
        )


def config_faults(config: Mapping[str, Any], expected: Expected) -> Iterator[str]:
    """Everything that is wrong, in words, with both values."""
    kind = config.get("speculators_model_type")
    if kind != "dspark":
        yield f"speculators_model_type is {kind!r}, expected 'dspark'"
        return
    yield from _anchor_faults(config, expected.record)
    yield from _layer_faults(config, expected)
    yield from _verifier_faults(config, expected)
    if expected.record is not None and expected.record.rope_of_target:
        wrong = rope_difference(config, expected.target)
        if wrong:
            yield f"rotary settings are {wrong[0]}, the target's, with which it was trained, {wrong[1]}"


def _anchor_faults(config: Mapping[str, Any], record: TrainingRecord | None) -> Iterator[str]:
    anchor, block = config.get("sample_from_anchor"), config.get("block_size")
    trained = None if record is None else record.sample_from_anchor
    if not isinstance(anchor, bool):
        wanted = "" if trained is None else f"; it was trained with {_lower(trained)}"
        yield (
            f"sample_from_anchor is {'absent' if anchor is None else repr(anchor)}, expected true or false: "
            f"engines read its absence in both ways, and the wrong one shifts every slot by one{wanted}"
        )
        return
    if record is not None and trained is not None and trained != anchor:
        yield f"sample_from_anchor is {_lower(anchor)}, {record.source} trained with {_lower(trained)}"
    most = block - (0 if anchor else 1) if isinstance(block, int) else 0
    if most < 1:
        yield (
            f"it drafts nothing: a block of {block} with sample_from_anchor {_lower(anchor)} "
            f"has {max(most, 0)} draft tokens, expected at least 1"
        )
        return
    stated = _stated_tokens(config)
    if stated is not None and not 1 <= stated <= most:
        yield (
            f"its proposal method drafts {stated} tokens, but a block of {block} with sample_from_anchor "
            f"{_lower(anchor)} has {most}: one of the two is wrong"
        )


def _stated_tokens(config: Mapping[str, Any]) -> int | None:
    methods = (config.get("speculators_config") or {}).get("proposal_methods") or [{}]
    stated = methods[0].get("speculative_tokens")
    return stated if isinstance(stated, int) else None


def _layer_faults(config: Mapping[str, Any], expected: Expected) -> Iterator[str]:
    ids = tuple(config.get("aux_hidden_state_layer_ids") or ())
    if ids != expected.layer_ids:
        yield f"it reads layers {list(ids)}, the captures hold {list(expected.layer_ids)}"
    record = expected.record
    if record is not None and record.aux_layer_ids not in (None, ids):
        yield f"it reads layers {list(ids)}, {record.source} trained with {list(record.aux_layer_ids or ())}"


def _verifier_faults(config: Mapping[str, Any], expected: Expected) -> Iterator[str]:
    target, layer = expected.target, config.get("transformer_layer_config") or {}
    verifier = (config.get("speculators_config") or {}).get("verifier") or {}
    width = config.get("target_hidden_size") or layer.get("hidden_size")
    if width != target.hidden_size:
        yield f"its target has hidden size {width}, this one {target.hidden_size}"
    if layer.get("vocab_size") != target.vocab_size:
        yield f"its target has a vocabulary of {layer.get('vocab_size')}, this one of {target.vocab_size}"
    kinds = verifier.get("architectures") or []
    if kinds and target.architecture and target.architecture not in kinds:
        yield f"its target is a {', '.join(kinds)}, this one a {target.architecture}"
    theirs, ours = verifier.get("revision"), expected.revision
    if theirs and ours and theirs != ours:
        yield f"its target is of revision {theirs}, this one of {ours}"
    digest = None if expected.record is None else expected.record.digest
    if digest and expected.digest and digest == expected.digest:
        return
    name = verifier.get("name_or_path")
    if name and _short(name) not in {_short(one) for one in expected.names}:
        yield (
            f"its target is called {name}, this one {' or '.join(dict.fromkeys(expected.names))} "
            "(evaluate.replay.verifier_names takes further names)"
        )


def _short(name: str) -> str:
    return name.rstrip("/").rsplit("/", 1)[-1].lower()


def _lower(value: bool) -> str:
    return str(value).lower()


def rope_settings(section: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary settings of a configuration's section, also where they are written in the older way."""
    found = dict(section.get("rope_parameters") or {})
    if "rope_theta" not in found and isinstance(found.get("full_attention"), dict):
        found = dict(found["full_attention"])
    if not found:
        found = dict(section.get("rope_scaling") or {})
        found["rope_theta"] = section.get("rope_theta")
    found["rope_type"] = found.get("rope_type") or found.pop("type", None) or "default"
    return {key: found[key] for key in ROPE_KEYS if found.get(key) is not None}


def rope_difference(
    config: Mapping[str, Any], target: TargetConfig
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The draft's rotary settings and the target's, where they differ; None where the target states none."""
    theirs = rope_settings(config.get("transformer_layer_config") or {})
    ours = rope_settings(text_section(target.raw))
    return (theirs, ours) if "rope_theta" in ours and theirs != ours else None
