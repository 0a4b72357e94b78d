"""Warm start: weights of an earlier DSpark or DFlash draft in a draft that is newly built.

Both must mean the same to the weights: width, layers, block, vocabulary, layers of the target, convention of
the anchor. What does not fit is refused with both values; heads that the earlier draft lacks start anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from profiles.schema import Draft
from tasks.train.earlier import EarlierDraft, Pair, profile_pairs, require_equal
from tasks.train.vocabulary import DraftVocabulary, vocabulary_of

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


def check_fits(earlier: EarlierDraft, wanted: Wanted) -> None:
    """Refuse a draft whose weights would mean something else here.

    Raises:
        StageInputError: Naming everything that differs, with both values.
    """
    pairs = profile_pairs(earlier, wanted.draft, wanted.aux_layer_ids, wanted.revision)
    require_equal(earlier, [*_decoder_pairs(earlier, wanted.decoder), *pairs])


def _decoder_pairs(earlier: EarlierDraft, decoder: Any) -> Iterator[Pair]:
    """What the target decides, as the new draft's configuration has it."""
    for name, what, field in (
        ("hidden_size", "hidden size", "target.model"),
        ("vocab_size", "the target's vocabulary", "target.model"),
        ("num_attention_heads", "number of attention heads", "target.model"),
        ("num_key_value_heads", "number of key-value heads", "target.model"),
        ("head_dim", "head size", "target.model"),
        ("intermediate_size", "MLP width", "train.draft.intermediate_size"),
    ):
        yield Pair(what, earlier.layer(name), getattr(decoder, name), field)
    yield Pair("rotary setting", earlier.rope, dict(decoder.rope_parameters), "target.model")
    kinds = "train.draft.full_attention_layers"
    yield Pair("kind of layers", earlier.layer_types, list(decoder.layer_types), kinds)


def stored_tensors(earlier: EarlierDraft) -> Iterator[tuple[str, Tensor]]:
    """Name and value of every stored tensor."""
    for path in sorted(earlier.folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as stored:
            for name in stored.keys():  # noqa: SIM118 - not a dict
                yield name, stored.get_tensor(name)


def target_ids(earlier: EarlierDraft) -> Tensor:
    """`[D]` target id of each of its draft ids.

    Raises:
        StageInputError: Its vocabulary is pruned and there is no map, or one of another size.
    """
    if earlier.draft_vocab_size >= earlier.vocab_size:
        return torch.arange(earlier.vocab_size)
    d2t = next((value for name, value in stored_tensors(earlier) if name == "d2t"), None)
    size = None if d2t is None else len(d2t)
    if d2t is None or size != earlier.draft_vocab_size:
        raise earlier.refused(
            f"its draft vocabulary has {earlier.draft_vocab_size} tokens, its map d2t {size}"
        )
    ids = d2t.long() + torch.arange(len(d2t))
    if int(ids.min()) < 0 or int(ids.max()) >= earlier.vocab_size:
        raise earlier.refused(
            f"its map d2t names token {int(ids.max())} of a target with {earlier.vocab_size} tokens"
        )
    return ids


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
    return vocabulary_of(target_ids(earlier).tolist(), whole, note)


def put_weights(earlier: EarlierDraft, trained: Mapping[str, Tensor], vocabulary: DraftVocabulary) -> str:
    """Copy the earlier draft's weights into `trained` (live tensors, float32) and say what was done.

    Raises:
        StageInputError: A tensor is missing, has another shape, or holds values that are not finite.
    """
    missing = set(trained)
    known = ""
    for name, value in stored_tensors(earlier):
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
    promised = {"markov_head.": earlier.markov_rank > 0, "confidence_head.": earlier.has_confidence}
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
    theirs = target_ids(earlier)
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
