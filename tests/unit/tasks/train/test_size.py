"""The parameter formula against a published draft."""

from __future__ import annotations

from dataclasses import replace

from tasks.train.size import DraftShape, serving_parameters, trained_parameters

KIMI_K3 = DraftShape(
    vocab_size=163_840,
    draft_vocab_size=163_840,
    hidden_size=7168,
    aux_layers=5,
    num_layers=5,
    num_attention_heads=96,
    num_key_value_heads=16,
    head_dim=64,
    intermediate_size=14_336,
    markov_rank=256,
)


def test_formula_gives_the_published_parameter_counts() -> None:
    assert serving_parameters(KIMI_K3) == 4_744_900_481
    assert trained_parameters(KIMI_K3) == 2_396_090_241


def test_heads_can_be_left_out() -> None:
    without = replace(KIMI_K3, markov_rank=0, confidence_head=False)
    assert trained_parameters(KIMI_K3) - trained_parameters(without) == 2 * 163_840 * 256 + 7168 + 256 + 1
