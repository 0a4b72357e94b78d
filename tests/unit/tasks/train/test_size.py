"""Parameter counts against a published model."""

from __future__ import annotations

import dataclasses

import pytest

from tasks.train.size import (
    DraftShape,
    draft_parameters,
    markov_parameters,
    serving_parameters,
    trained_parameters,
)

K3 = DraftShape(
    hidden_size=7168,
    intermediate_size=14336,
    num_layers=5,
    num_attention_heads=96,
    num_key_value_heads=16,
    head_dim=64,
    vocab_size=163840,
    draft_vocab_size=163840,
    aux_layers=5,
    markov_rank=256,
)


def test_the_published_k3_draft() -> None:
    counts = draft_parameters(K3)
    assert counts.total == 4_744_900_481
    assert counts.frozen == 2_348_810_240
    assert counts.trained == 2_396_090_241
    assert (serving_parameters(K3), trained_parameters(K3)) == (counts.total, counts.trained)


def test_no_markov_head_and_no_confidence_head() -> None:
    counts = draft_parameters(dataclasses.replace(K3, markov_rank=0, confidence_head=False))
    assert (counts.markov, counts.confidence) == (0, 0)


@pytest.mark.parametrize(
    ("kind", "extra"), [("vanilla", 0), ("gated", (10 + 4) * 4 + 4), ("rnn", (8 + 10) * 12 + 12)]
)
def test_markov_variants(kind: str, extra: int) -> None:
    shape = DraftShape(100, 50, 10, 1, 1, 2, 1, 4, 20, 4, kind)
    assert markov_parameters(shape) == 100 * 4 + 4 * 50 + extra
