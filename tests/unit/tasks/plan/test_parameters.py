"""Bytes of a draft."""

from __future__ import annotations

from tasks.plan.parameters import checkpoint_bytes, export_bytes
from tasks.train.size import DraftShape, draft_parameters


def test_a_pruned_export_carries_its_head() -> None:
    counts = draft_parameters(DraftShape(32_000, 1000, 64, 3, 1, 4, 2, 16, 128, 8))
    assert export_bytes(counts, True) - export_bytes(counts, False) == 4 * 1000 * 64


def test_a_checkpoint_holds_what_is_trained_and_its_moments() -> None:
    counts = draft_parameters(DraftShape(32_000, 1000, 64, 3, 1, 4, 2, 16, 128, 8))
    assert checkpoint_bytes(counts) == 3 * 4 * counts.trained
