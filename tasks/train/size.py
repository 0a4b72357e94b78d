"""How many parameters a DSpark draft has: arithmetic only, so that plans need no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DraftShape:
    """Sizes that the parameter count depends on."""

    vocab_size: int
    """V, the target's vocabulary: rows of the embedding and of the Markov head's first matrix."""
    draft_vocab_size: int
    """V', tokens that the draft can propose: rows of the head and of the Markov head's second matrix."""
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
    confidence_with_markov: bool = True
    """The confidence head also sees the Markov embedding; nothing at rank 0."""


@dataclass(frozen=True)
class DraftParameters:
    """Parameter counts by part; `frozen` ones are the target's own and do not train."""

    embedding: int
    lm_head: int
    fc: int
    norms: int
    layers: int
    markov: int
    confidence: int

    @property
    def frozen(self) -> int:
        return self.embedding + self.lm_head

    @property
    def trained(self) -> int:
        return self.fc + self.norms + self.layers + self.markov + self.confidence

    @property
    def total(self) -> int:
        return self.frozen + self.trained


def shape_of_config(config: Mapping[str, Any]) -> DraftShape:
    """Sizes of a draft from its `config.json` in Speculators format.

    Raises:
        KeyError: A size is missing.
    """
    layer = config["transformer_layer_config"]
    return DraftShape(
        vocab_size=layer["vocab_size"],
        draft_vocab_size=config["draft_vocab_size"],
        hidden_size=layer["hidden_size"],
        aux_layers=len(config["aux_hidden_state_layer_ids"]),
        num_layers=layer["num_hidden_layers"],
        num_attention_heads=layer["num_attention_heads"],
        num_key_value_heads=layer["num_key_value_heads"],
        head_dim=layer["head_dim"],
        intermediate_size=layer["intermediate_size"],
        markov_rank=config["markov_rank"],
        markov_head_type=config["markov_head_type"],
        confidence_head=config["enable_confidence_head"],
        confidence_with_markov=config["confidence_head_with_markov"],
    )


def markov_parameters(shape: DraftShape) -> int:
    """Parameters of the Markov head: `V r + r V'`, plus the gate or the joint projection with bias."""
    rank = shape.markov_rank
    if rank == 0:
        return 0
    base = shape.vocab_size * rank + rank * shape.draft_vocab_size
    extra = {
        "vanilla": 0,
        "gated": (shape.hidden_size + rank) * rank + rank,
        "rnn": (2 * rank + shape.hidden_size) * 3 * rank + 3 * rank,
    }
    return base + extra[shape.markov_head_type]


def confidence_inputs(shape: DraftShape) -> int:
    """Width of what the confidence head sees: `d`, or `d + r` with the Markov embedding."""
    return shape.hidden_size + (shape.markov_rank if shape.confidence_with_markov else 0)


def draft_parameters(shape: DraftShape) -> DraftParameters:
    """Count the parameters of a draft.

    `2Vd + m d d + 2d + 2Vr + L(2 d H hd + 2 d KV hd + 3 d I + 2d + 2 hd) + (d + r + 1)`, full vocabulary
    and a confidence head that sees the Markov embedding.
    """
    hidden, head_dim = shape.hidden_size, shape.head_dim
    attention = 2 * hidden * head_dim * (shape.num_attention_heads + shape.num_key_value_heads)
    layer = attention + 3 * hidden * shape.intermediate_size + 2 * hidden + 2 * head_dim
    return DraftParameters(
        embedding=shape.vocab_size * hidden,
        lm_head=shape.draft_vocab_size * hidden,
        fc=shape.aux_layers * hidden * hidden,
        norms=2 * hidden,
        layers=shape.num_layers * layer,
        markov=markov_parameters(shape),
        confidence=confidence_inputs(shape) + 1 if shape.confidence_head else 0,
    )


def trained_parameters(shape: DraftShape) -> int:
    """Parameters that training changes: everything but the target's embedding, head and final norm."""
    return draft_parameters(shape).trained


def serving_parameters(shape: DraftShape) -> int:
    """All parameters that the draft needs in serving, the target's embedding and (pruned) head included.

    Gives 4,744,900,481 for the published draft of Kimi K3.
    """
    return draft_parameters(shape).total
