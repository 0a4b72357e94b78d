"""Attention of draft blocks over the target's context, whose keys and values are computed once.

The plain backbone appends every block to the context, so that each query meets the keys of all blocks and the
context is projected again in each pass. Here a layer's keys and values of the context are kept, a pass may
take any part of the anchors, and a query meets its own block and the context before its anchor.

Shapes: T context rows, A anchors, B slots of a block, D size of a head, G key-value heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from speculators.models.attention import ALL_ATTENTION_FUNCTIONS
from speculators.models.dflash.model_definitions import apply_rotary_pos_emb
from torch import Tensor

NAME = "replayed_blocks"
CONTEXT_ROWS = 4096
"""Rows of hidden states that are float32 at the same time."""


@dataclass(frozen=True)
class Context:
    """Keys and values of a prompt and its answer, a pair for each layer of the draft."""

    keys: tuple[Tensor, ...]
    """`[G, T, D]` each, normed and rotated."""
    values: tuple[Tensor, ...]
    """`[G, T, D]` each."""
    first: int = 0
    """Position of the first row that is kept."""


@dataclass(frozen=True)
class Piece:
    """Blocks of one pass that share a context."""

    context: Context
    anchors: Tensor
    """`[A]` positions in the context, rising; the context holds at least the rows before each."""


@dataclass(frozen=True)
class Layout:
    """What the attention of one kind of layers has to know.

    Args:
        window: Context rows that a block sees; None for all.
        causal: Slots see only earlier slots of their block (upstream's rule for sliding layers).
    """

    pieces: Sequence[Piece]
    width: int
    window: int | None
    causal: bool


def read_context(model: Any, hidden: Tensor, first_anchor: int = 0) -> Context:
    """Project the target's hidden states into every layer of the draft, some thousand rows at a time.

    Args:
        hidden: `[T, L, H]` or `[T, L * H]`, of any type; converted as it is read.
        first_anchor: No block starts before it, so that a draft whose layers all slide needs no rows that lie
            more than a window before.
    """
    window = only_window(model)
    first = 0 if window is None else max(0, first_anchor - window)
    keys: list[list[Tensor]] = [[] for _ in model.layers]
    values: list[list[Tensor]] = [[] for _ in model.layers]
    for start in range(first, hidden.shape[0], CONTEXT_ROWS):
        rows = hidden[start : start + CONTEXT_ROWS].float().flatten(1)
        states = model.hidden_norm(model.fc(rows[None]))
        cos, sin = model.rotary_emb(states, torch.arange(start, start + len(rows))[None])
        for index, layer in enumerate(model.layers):
            attention = layer.self_attn
            shape = (1, len(rows), -1, attention.head_dim)
            key = attention.k_norm(attention.k_proj(states).view(shape)).transpose(1, 2)
            keys[index].append(apply_rotary_pos_emb(key, key, cos, sin)[1][0])
            values[index].append(attention.v_proj(states).view(shape).transpose(1, 2)[0])
    joined = tuple(torch.cat(part, dim=1) for part in keys), tuple(torch.cat(part, dim=1) for part in values)
    return Context(*joined, first)


def only_window(model: Any) -> int | None:
    """Window of a draft whose layers all slide; None if any sees everything."""
    return model.sliding_window if len(model.sliding_window_indices) == len(model.layers) else None


def attend_blocks(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Layout,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention function in transformers' interface.

    Args:
        query: `[1, heads, N * B, D]`, the blocks of all pieces one after another.
        key: `[1, G, N * B, D]`, the blocks' own keys; the context's are in `attention_mask`.
        value: Like `key`.

    Returns:
        `[1, N * B, heads, D]` and None.
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    outputs, first = [], 0
    for piece in attention_mask.pieces:
        last = first + len(piece.anchors) * attention_mask.width
        own = (query[0, :, first:last] * scale, key[0, :, first:last], value[0, :, first:last])
        outputs.append(_attend(own, piece, attention_mask, module.layer_idx))
        first = last
    return torch.cat(outputs, dim=1).transpose(0, 1)[None].contiguous(), None


def _attend(own: tuple[Tensor, Tensor, Tensor], piece: Piece, layout: Layout, layer: int) -> Tensor:
    """`[heads, A * B, D]` of one piece."""
    query, key, value = own
    groups, size, width = key.shape[0], key.shape[2], layout.width
    anchors = piece.anchors
    end, kept = int(anchors[-1]), piece.context.first
    start = kept if layout.window is None else max(kept, int(anchors[0]) - layout.window)
    rows = slice(start - kept, end - kept)
    before, contents = piece.context.keys[layer][:, rows], piece.context.values[layer][:, rows]
    grouped = query.reshape(groups, -1, len(anchors), width, size)
    inside = key.view(groups, 1, len(anchors), width, size)
    seen = _seen(anchors, start, end, layout.window)
    outside = (grouped.reshape(groups, -1, size) @ before.transpose(1, 2)).view(*grouped.shape[:4], -1)
    outside = outside.masked_fill(~seen[:, None, :], float("-inf"))
    within = grouped @ inside.transpose(-1, -2)
    if layout.causal:
        later = torch.ones(width, width, dtype=torch.bool, device=within.device).triu(1)
        within = within.masked_fill(later, float("-inf"))
    shares = torch.cat([outside, within], dim=-1).softmax(dim=-1)
    outer = shares[..., : end - start].reshape(groups, -1, end - start)
    summed = (outer @ contents).view(grouped.shape)
    summed = summed + shares[..., end - start :] @ value.view(inside.shape)
    return summed.reshape(query.shape)


def _seen(anchors: Tensor, start: int, end: int, window: int | None) -> Tensor:
    """`[A, rows]`: which context rows the block of an anchor may see."""
    rows = torch.arange(start, end, device=anchors.device)[None]
    seen = rows < anchors[:, None]
    return seen if window is None else seen & (rows >= anchors[:, None] - window)


def score_bytes(model: Any, width: int, rows: int) -> int:
    """Bytes that the scores of one anchor over `rows` of context take, with the copies made on the way."""
    window = only_window(model)
    heads = model.config.transformer_layer_config.num_attention_heads
    return 3 * 4 * int(heads) * width * (rows if window is None else min(rows, window))


ALL_ATTENTION_FUNCTIONS.register(NAME, attend_blocks)
