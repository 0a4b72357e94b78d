"""How many parameters a DSpark draft has: arithmetic only, so that plans need no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DraftShape:
    """Sizes that the parameter count depends on."""

    vocab_size: int
    """V, the target's vocabulary."""
    draft_vocab_size: int
    """D, tokens that the draft can propose."""
    hidden_size: int
    aux_layers: int
    """Captured layers that feed the draft, without the last one."""
    num_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    markov_rank: int
    markov_head_type: str = "vanilla"
    confidence_head: bool = True


def trained_parameters(shape: DraftShape) -> int:
    """Parameters that training changes: everything but the target's embedding, head and final norm."""
    d, r = shape.hidden_size, shape.markov_rank
    heads = shape.num_attention_heads * shape.head_dim
    kv_heads = shape.num_key_value_heads * shape.head_dim
    attention = 2 * d * heads + 2 * d * kv_heads + 2 * shape.head_dim
    layer = attention + 3 * d * shape.intermediate_size + 2 * d
    total = shape.num_layers * layer + shape.aux_layers * d * d + 2 * d
    if r:
        total += shape.vocab_size * r + r * shape.draft_vocab_size
        if shape.markov_head_type == "gated":
            total += (d + r) * r + r
        elif shape.markov_head_type == "rnn":
            total += (2 * r + d) * 3 * r + 3 * r
    if shape.confidence_head:
        total += d + r + 1
    return total


def serving_parameters(shape: DraftShape) -> int:
    """All parameters that the draft needs in serving, the target's embedding and (pruned) head included.

    Gives 4,744,900,481 for the published draft of Kimi K3.
    """
    frozen = shape.vocab_size * shape.hidden_size + shape.draft_vocab_size * shape.hidden_size
    return frozen + trained_parameters(shape)
