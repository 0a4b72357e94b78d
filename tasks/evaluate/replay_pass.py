"""What a draft does at every token of answers that are known: its chain, its confidence, its overlap.

Shapes: T rows of hidden states, G answer tokens, A anchors, K drafted tokens, B slots of a block, V draft
vocabulary. An anchor is an answer token; its block drafts the tokens behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tasks.evaluate.draft_model import block_states, first_slot, markov_bias, most_tokens, target_ids
from tasks.evaluate.replay_attention import Context, Piece, read_context, score_bytes
from tasks.evaluate.replay_target import TargetHead


@dataclass(frozen=True)
class Document:
    """One captured answer and the anchors that are drafted from."""

    aux: Tensor
    """`[T, L, H]`, what the draft reads; of any type, as `last`."""
    last: Tensor
    """`[T, H]`, the target's last layer before its norm."""
    ids: Tensor
    """`[P + G]`, prompt and answer."""
    prompt_tokens: int
    starts: int
    """A: answer tokens that a block starts from, the first ones."""

    @property
    def answer(self) -> Tensor:
        return self.ids[self.prompt_tokens :]

    @property
    def anchors(self) -> Tensor:
        """`[A]`, positions."""
        return torch.arange(self.prompt_tokens, self.prompt_tokens + self.starts)


@dataclass(frozen=True)
class Blocks:
    """What was drafted at the anchors of one document."""

    tokens: Tensor
    """`[A, K]` target ids: the draft's own greedy chain."""
    right: Tensor
    """`[A, K]` bool: the drafted token is the target's."""
    known: Tensor
    """`[A, K]` bool: the answer reaches that far."""
    confidence: Tensor | None = None
    """`[A, K]` logits of the confidence head along the own chain; None without a head."""
    overlap: Tensor | None = None
    """`[A, K]` share of probability that draft and target have in common, `1 - TV`, with the answer's tokens
    before the slot; 0 where the answer is not known. Where the chain so far is right, both chains are one."""


def truth(document: Document, tokens: int) -> tuple[Tensor, Tensor]:
    """`[A, K]` the target's tokens behind each anchor (0 beyond the answer) and which are known."""
    places = torch.arange(document.starts)[:, None] + 1 + torch.arange(tokens)
    known = places < len(document.answer)
    return document.answer[places.clamp(max=len(document.answer) - 1)].where(known, 0), known


def anchors_at_once(model: Any, rows: int, width: int, limit_bytes: int) -> int:
    """Anchors of one pass, so that neither scores nor logits take more than `limit_bytes`."""
    logits = 5 * 4 * int(model.lm_head.weight.shape[0])
    return max(1, limit_bytes // (logits + score_bytes(model, width, rows)))


@torch.inference_mode()
def replay_document(
    model: Any, document: Document, head: TargetHead | None, limit_bytes: int, tokens: int | None = None
) -> Blocks:
    """Draft at every anchor of a document. Its context is projected once, whatever is cut into passes.

    Args:
        head: The target's head, to compute overlaps; None leaves them out.
        tokens: Draft tokens that the engine is asked for: K of a whole block, or fewer, which makes the block
            narrower and may change what its slots say.
    """
    tokens = tokens or most_tokens(model)
    width = tokens + first_slot(model)
    following, known = truth(document, tokens)
    context = read_context(model, document.aux, document.prompt_tokens)
    at_once = anchors_at_once(model, document.aux.shape[0], width, limit_bytes)
    parts = [
        _pass(model, document, context, document.anchors[rows], following[rows], head)
        for rows in _slices(document.starts, at_once)
    ]
    drafted = torch.cat([part[0] for part in parts])
    overlap = None if head is None else torch.cat([part[2] for part in parts if part[2] is not None])
    return Blocks(
        tokens=drafted,
        right=(drafted == following) & known,
        known=known,
        confidence=None
        if model.confidence_head is None
        else torch.cat([part[1] for part in parts if part[1] is not None]),
        overlap=None if overlap is None else overlap.where(known, 0.0),
    )


def _slices(total: int, size: int) -> Iterator[slice]:
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))


def _pass(
    model: Any,
    document: Document,
    context: Context,
    anchors: Tensor,
    following: Tensor,
    head: TargetHead | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Tokens, confidence and overlap, `[A, K]` each, of a run of anchors."""
    first, tokens = first_slot(model), following.shape[1]
    anchored = document.ids[anchors]
    states = block_states(model, [Piece(context, anchors)], anchored, tokens + first)[:, first:]
    wanted = None
    if head is not None:
        # The row of a token says what follows it; rows beyond the answer stand for nothing.
        rows = torch.arange(int(anchors[0]), int(anchors[-1]) + tokens)
        wanted = head.probabilities(document.last[rows.clamp(max=document.last.shape[0] - 1)].float())
    own = anchored[:, None]
    true = torch.cat([own, following], dim=1)
    sure, common = [], []
    for slot in range(tokens):
        base = model.lm_head(states[:, slot])
        logits = _biased(model, base, states, own)
        if wanted is not None:
            forced = _forced(model, base, logits, states, own, true[:, : slot + 1])
            place = anchors - anchors[0] + slot
            common.append(torch.minimum(forced.softmax(dim=-1), wanted[place]).sum(dim=-1))
        if model.confidence_head is not None:
            sure.append(_confidence(model, states[:, slot], own[:, -1]))
        own = torch.cat([own, target_ids(model, logits.argmax(dim=-1))[:, None]], dim=1)
    return own[:, 1:], torch.stack(sure, 1) if sure else None, torch.stack(common, 1) if common else None


def _biased(model: Any, base: Tensor, states: Tensor, previous: Tensor) -> Tensor:
    bias = markov_bias(model, states, previous)
    return base if bias is None else base + bias


def _forced(model: Any, base: Tensor, logits: Tensor, states: Tensor, own: Tensor, true: Tensor) -> Tensor:
    """Logits with the answer's tokens before the slot; computed where the own chain has left them."""
    left = (own != true).any(dim=1)
    if model.markov_head is None or not bool(left.any()):
        return logits
    forced = logits.clone()
    forced[left] = _biased(model, base[left], states[left], true[left])
    return forced


def _confidence(model: Any, states: Tensor, previous: Tensor) -> Tensor:
    """The head's logit `[A]` for the slot with `states [A, H]` behind the tokens `previous [A]`."""
    if model.config.confidence_head_with_markov and model.markov_head is not None:
        states = torch.cat([states, model.markov_head.prev_embeddings(previous)], dim=-1)
    logits: Tensor = model.confidence_head(states)
    return logits.float()


def first_right(blocks: Sequence[Blocks]) -> float | None:
    """Share of known first tokens that are right; what training calls the accuracy at position 0."""
    known = sum(int(one.known[:, 0].sum()) for one in blocks)
    return sum(int(one.right[:, 0].sum()) for one in blocks) / known if known else None
