"""Attention of anchored blocks over packed documents, one document at a time.

Upstream's mask covers every query against every packed token. A block only ever sees its own document
before its anchor, and itself, so attending document by document gives the same values for a fraction of
the work, with any device and without a compiled mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

NAME = "packed_documents"


@dataclass(frozen=True)
class BlockLayout:
    """Where the blocks of a packed batch sit.

    Args:
        spans: Per document `(first token, end token, first block, end block)`; blocks in document order.
        anchors: `[N]` anchor positions in the packed batch, rising.
        block_size: Slots in a block.
        sliding_window: Context tokens that a block sees, or None for all.
        causal: Slots see only earlier slots of their block (upstream's rule for sliding layers).
    """

    spans: tuple[tuple[int, int, int, int], ...]
    anchors: Tensor
    block_size: int
    sliding_window: int | None
    causal: bool

    def masks(self) -> Iterator[tuple[int, int, int, int, Tensor]]:
        """Each document with blocks, and its mask `[queries, context + queries]` (True = seen)."""
        size = self.block_size
        for start, end, first, last in self.spans:
            if first == last:
                continue
            device = self.anchors.device
            anchors = self.anchors[first:last].repeat_interleave(size)[:, None]
            position = torch.arange(start, end, device=device)[None, :]
            context = position < anchors
            if self.sliding_window is not None:
                context &= position >= anchors - self.sliding_window
            slot = torch.arange((last - first) * size, device=device)
            own = (slot[:, None] // size) == (slot[None, :] // size)
            if self.causal:
                own &= slot[None, :] <= slot[:, None]
            yield start, end, first * size, last * size, torch.cat([context, own], dim=1)


class LayoutMasks:
    """The masks of one batch, computed once and used by every layer of the same kind."""

    def __init__(self, layout: BlockLayout, tokens: int):
        self.tokens = tokens
        self.documents = list(layout.masks())


def packed_document_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: LayoutMasks,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention function in transformers' interface.

    Args:
        query: `[1, heads, N * block, head_dim]`.
        key: `[1, kv_heads, tokens + N * block, head_dim]`, context first.
        value: Like `key`.

    Returns:
        `[1, N * block, heads, head_dim]` and None.
    """
    tokens = attention_mask.tokens
    outputs = []
    for start, end, first, last, mask in attention_mask.documents:
        keys = torch.cat([key[:, :, start:end], key[:, :, tokens + first : tokens + last]], dim=2)
        values = torch.cat([value[:, :, start:end], value[:, :, tokens + first : tokens + last]], dim=2)
        outputs.append(_attend(query[:, :, first:last], keys, values, mask, scaling))
    return torch.cat(outputs, dim=2).transpose(1, 2).contiguous(), None


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None) -> Tensor:
    """Attention of one document; plain products on the CPU, where they cost half of torch's kernel."""
    if query.device.type != "cpu":
        return scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
        )
    groups, queries, width = key.shape[1], query.shape[2], query.shape[3]
    repeats = query.shape[1] // groups
    grouped = query.reshape(1, groups, repeats * queries, width)
    scale = width**-0.5 if scaling is None else scaling
    hidden = torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, float("-inf"))
    scores = (grouped @ key.transpose(2, 3)).float() * scale + hidden.repeat(repeats, 1)
    seen = scores.softmax(dim=-1).to(value.dtype) @ value
    return seen.view(1, query.shape[1], queries, width)
