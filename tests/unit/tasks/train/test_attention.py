"""Masks of anchored blocks."""

from __future__ import annotations

import torch

from tasks.train.attention import BlockLayout


def layout(sliding_window: int | None = None, causal: bool = False) -> BlockLayout:
    """Documents of 5 and 4 tokens; blocks of 2 slots at positions 2 and 7."""
    return BlockLayout(((0, 5, 0, 1), (5, 9, 1, 2)), torch.tensor([2, 7]), 2, sliding_window, causal)


def test_block_sees_its_document_before_the_anchor_and_itself() -> None:
    (_, _, _, _, first), (start, end, low, high, second) = list(layout().masks())
    assert first.tolist() == [[True, True, False, False, False, True, True]] * 2
    assert (start, end, low, high) == (5, 9, 2, 4)
    assert second.tolist() == [[True, True, False, False, True, True]] * 2


def test_sliding_window_and_causal_block() -> None:
    _, (_, _, _, _, mask) = list(layout(sliding_window=1, causal=True).masks())
    assert mask.int().tolist() == [[0, 1, 0, 0, 1, 0], [0, 1, 0, 0, 1, 1]]


def test_document_without_blocks_costs_nothing() -> None:
    spans = ((0, 5, 0, 0), (5, 9, 0, 1))
    assert len(list(BlockLayout(spans, torch.tensor([7]), 2, None, False).masks())) == 1
