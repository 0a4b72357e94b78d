"""Warm start: weights of an earlier DSpark or DFlash draft in a draft that is newly built.

Both must mean the same to the weights: width, layers, block, vocabulary, layers of the target, convention of
the anchor. What does not fit is refused with both values; heads that the earlier draft lacks start anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from profiles.schema import Draft
from tasks.errors import StageInputError
from tasks.train.initial import CONFIG, FIELD, InitialDraft
from tasks.train.vocabulary import DraftVocabulary, vocabulary_of

KINDS = ("dspark", "dflash")
MARKOV_OUT = "markov_head.markov_w2.weight"
_HEADS = {"markov_head.": "Markov head", "confidence_head.": "confidence head"}


@dataclass(frozen=True)
class Wanted:
    """What the profile and the target ask of a draft.

    Args:
        decoder: Configuration of the new draft's layers (`adapter.decoder_config`).
        revision: Pinned revision of the target, if the profile names one.
    """

    draft: Draft
    decoder: Any
    aux_layer_ids: tuple[int, ...]
    revision: str | None


class EarlierDraft:
    """A draft in Speculators format to start from.

    Raises:
        StageInputError: Its configuration cannot be read, or is none of DSpark or DFlash.
    """

    def __init__(self, initial: InitialDraft):
        self.name = initial.name
        self.folder = Path(initial.folder)
        try:
            self.config: dict[str, Any] = json.loads((self.folder / CONFIG).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise self.refused(f"its {CONFIG} cannot be read: {error}") from None
        self.kind = self.config.get("speculators_model_type")
        if self.kind not in KINDS:
            raise self.refused(f"its speculators_model_type is {self.kind!r}, not dspark or dflash")
        if self.kind == "dspark" and "sample_from_anchor" not in self.config:
            # Engines read a missing field in both ways; a wrong guess shifts every slot by one.
            raise self.refused(f"its {CONFIG} does not say sample_from_anchor")

    def refused(self, why: str, hint: str = "") -> StageInputError:
        return StageInputError(
            f"training cannot start from draft {self.name}: {why}",
            where=f"{FIELD}: {self.folder}",
            hint=hint or f"name another draft with {FIELD}, or leave it empty to start anew",
        )

    def field(self, name: str, fallback: Any = None) -> Any:
        """Value of the configuration."""
        return self.config.get(name, fallback)

    def layer(self, name: str) -> Any:
        """Value of the configuration of its layers."""
        return self.config.get("transformer_layer_config", {}).get(name)

    @property
    def mask_token_id(self) -> int | None:
        found = self.field("mask_token_id")
        return None if found is None else int(found)

    @property
    def vocab_size(self) -> int:
        return int(self.layer("vocab_size") or 0)

    @property
    def draft_vocab_size(self) -> int:
        return int(self.field("draft_vocab_size") or self.vocab_size)

    @property
    def revision(self) -> str | None:
        verifier = self.config.get("speculators_config", {}).get("verifier", {})
        return verifier.get("revision") or None

    @property
    def rope(self) -> dict[str, Any]:
        """Rotary settings, also where they are written in the older way."""
        found = dict(self.layer("rope_parameters") or {})
        if not found:
            found = {"rope_type": "default", **(self.layer("rope_scaling") or {})}
            found["rope_theta"] = self.layer("rope_theta")
        return found

    @property
    def window(self) -> int | None:
        """Attention window, of whichever layers slide."""
        return self.layer("sliding_window") if "sliding_attention" in self.layer_types else None

    @property
    def layer_types(self) -> list[str]:
        return self.layer("layer_types") or ["full_attention"] * int(self.layer("num_hidden_layers") or 0)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Name and value of every stored tensor."""
        for path in sorted(self.folder.glob("*.safetensors")):
            with safe_open(path, framework="pt") as stored:
                for name in stored.keys():  # noqa: SIM118 - not a dict
                    yield name, stored.get_tensor(name)

    def target_ids(self) -> Tensor:
        """`[D]` target id of each of its draft ids.

        Raises:
            StageInputError: Its vocabulary is pruned and there is no map, or one of another size.
        """
        if self.draft_vocab_size >= self.vocab_size:
            return torch.arange(self.vocab_size)
        d2t = next((value for name, value in self.tensors() if name == "d2t"), None)
        size = None if d2t is None else len(d2t)
        if d2t is None or size != self.draft_vocab_size:
            raise self.refused(f"its draft vocabulary has {self.draft_vocab_size} tokens, its map d2t {size}")
        ids = d2t.long() + torch.arange(len(d2t))
        if int(ids.min()) < 0 or int(ids.max()) >= self.vocab_size:
            raise self.refused(
                f"its map d2t names token {int(ids.max())} of a target with {self.vocab_size} tokens"
            )
        return ids


def check_fits(earlier: EarlierDraft, wanted: Wanted) -> None:
    """Refuse a draft whose weights would mean something else here.

    Raises:
        StageInputError: Naming every field that differs, with both values.
    """
    wrong = [
        f"{what} is {theirs}, wanted {ours} ({field})"
        for what, theirs, ours, field in _pairs(earlier, wanted)
        if theirs != ours
    ]
    if wrong:
        raise earlier.refused(
            "; ".join(wrong),
            f"set the fields in brackets to the draft's values, or name another draft with {FIELD}",
        )


def _pairs(earlier: EarlierDraft, wanted: Wanted) -> Iterator[tuple[str, Any, Any, str]]:
    """What is compared: words, the earlier draft's value, ours, field of the profile."""
    draft, decoder = wanted.draft, wanted.decoder
    for name, what, field in (
        ("hidden_size", "hidden size", "target.model"),
        ("vocab_size", "the target's vocabulary", "target.model"),
        ("num_attention_heads", "number of attention heads", "target.model"),
        ("num_key_value_heads", "number of key-value heads", "target.model"),
        ("head_dim", "head size", "target.model"),
        ("num_hidden_layers", "number of layers", "train.draft.num_layers"),
        ("intermediate_size", "MLP width", "train.draft.intermediate_size"),
    ):
        yield what, earlier.layer(name), getattr(decoder, name), field
    yield "rotary setting", earlier.rope, dict(decoder.rope_parameters), "target.model"
    yield "attention window", earlier.window, draft.sliding_window, "train.draft.sliding_window"
    yield (
        "kind of layers",
        earlier.layer_types,
        list(decoder.layer_types),
        "train.draft.full_attention_layers",
    )
    yield "block size", earlier.field("block_size"), draft.block_size, "train.draft.block_size"
    anchor = bool(earlier.field("sample_from_anchor", False))
    yield "sample_from_anchor", anchor, draft.sample_from_anchor, "train.draft.sample_from_anchor"
    layers = earlier.field("aux_hidden_state_layer_ids")
    yield "auxiliary layers", layers, list(wanted.aux_layer_ids), "target.aux_layer_ids"
    if earlier.revision and wanted.revision:
        yield "the target's revision", earlier.revision, wanted.revision, "target.revision"
    yield from _head_pairs(earlier, draft)


def _head_pairs(earlier: EarlierDraft, draft: Draft) -> Iterator[tuple[str, Any, Any, str]]:
    """Heads that the earlier draft has; one that it lacks starts anew."""
    rank = int(earlier.field("markov_rank") or 0) if earlier.kind == "dspark" else 0
    if rank:
        yield "Markov rank", rank, draft.markov_rank, "train.draft.markov_rank"
        kind = earlier.field("markov_head_type", "vanilla")
        yield "Markov head", kind, draft.markov_head_type, "train.draft.markov_head_type"
    if earlier.kind == "dspark" and earlier.field("enable_confidence_head"):
        yield "confidence head", True, draft.confidence_head, "train.draft.confidence_head"
        with_markov = bool(earlier.field("confidence_head_with_markov")) and rank > 0
        ours = draft.confidence_with_markov and draft.markov_rank > 0
        yield "the confidence head sees Markov", with_markov, ours, "train.draft.confidence_with_markov"


def carried_vocabulary(earlier: EarlierDraft, wanted: int | None) -> DraftVocabulary:
    """The earlier draft's own vocabulary.

    Args:
        wanted: `train.draft.vocab_size`; a smaller vocabulary had been lowered to the tokens captured then.

    Raises:
        StageInputError: The profile asks for another one.
    """
    size, whole = earlier.draft_vocab_size, earlier.vocab_size
    pruned = wanted is not None and wanted < whole
    if size >= whole and not pruned:
        return DraftVocabulary(None, None, whole)
    if size >= whole or not pruned or size > (wanted or 0):
        raise earlier.refused(
            f"its draft vocabulary has {size:,} tokens, train.draft.vocab_size is {wanted or whole:,}",
            "set train.draft.vocab_size to the draft's, or train.init_vocabulary to rebuild",
        )
    note = f"draft vocabulary carried over from draft {earlier.name}: {size:,} tokens"
    return vocabulary_of(earlier.target_ids().tolist(), whole, note)


def put_weights(earlier: EarlierDraft, trained: Mapping[str, Tensor], vocabulary: DraftVocabulary) -> str:
    """Copy the earlier draft's weights into `trained` (live tensors, float32) and say what was done.

    Raises:
        StageInputError: A tensor is missing, has another shape, or holds values that are not finite.
    """
    missing = set(trained)
    known = ""
    for name, value in earlier.tensors():
        if name not in trained:
            continue
        if not bool(torch.isfinite(value).all()):
            raise earlier.refused(f"its tensor {name} holds values that are not finite")
        if name == MARKOV_OUT:
            known = _put_rows(earlier, trained[name], value, vocabulary)
        else:
            _put(earlier, name, trained[name], value)
        missing.discard(name)
    fresh = _fresh_heads(earlier, missing)
    words = [f"training started from draft {earlier.name} ({earlier.kind})"]
    words += [f"its {' and '.join(fresh)} started anew"] if fresh else []
    words += [known] if known else []
    return "; ".join(words)


def _fresh_heads(earlier: EarlierDraft, missing: set[str]) -> list[str]:
    """Heads that the earlier draft does not have; anything else that is missing is damage."""
    heads = [head for prefix, head in _HEADS.items() if any(name.startswith(prefix) for name in missing)]
    has_markov = earlier.kind == "dspark" and bool(earlier.field("markov_rank"))
    has_confidence = earlier.kind == "dspark" and bool(earlier.field("enable_confidence_head"))
    promised = {"markov_head.": has_markov, "confidence_head.": has_confidence}
    lost = [
        name
        for name in sorted(missing)
        if next((has for prefix, has in promised.items() if name.startswith(prefix)), True)
    ]
    if lost:
        raise earlier.refused(f"it lacks {len(lost)} tensors, {lost[0]} is the first")
    return heads


def _put(earlier: EarlierDraft, name: str, into: Tensor, value: Tensor) -> None:
    if value.shape != into.shape:
        raise earlier.refused(f"its tensor {name} is {tuple(value.shape)}, wanted {tuple(into.shape)}")
    into.data.copy_(value)


def _put_rows(earlier: EarlierDraft, into: Tensor, value: Tensor, vocabulary: DraftVocabulary) -> str:
    """Rows of the tokens that both vocabularies have; says how many, where they are not the same."""
    theirs = earlier.target_ids()
    if len(value) != len(theirs) or value.shape[1:] != into.shape[1:]:
        raise earlier.refused(f"its tensor {MARKOV_OUT} is {tuple(value.shape)}, wanted {tuple(into.shape)}")
    ours = torch.arange(vocabulary.size) if vocabulary.d2t is None else vocabulary.target_ids()
    if torch.equal(ours, theirs):
        into.data.copy_(value)
        return ""
    row_of = torch.full((earlier.vocab_size,), -1)
    row_of[theirs] = torch.arange(len(theirs))
    rows = row_of[ours]
    both = rows >= 0
    into.data[both] = value[rows[both]].to(into.dtype)
    return (
        f"draft vocabulary rebuilt: {int(both.sum()):,} of {len(ours):,} tokens were in that draft's, "
        f"which had {len(theirs):,}"
    )
