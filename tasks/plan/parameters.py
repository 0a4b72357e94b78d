"""Parameters and bytes of a DSpark draft, from its shape alone."""

from __future__ import annotations

from dataclasses import dataclass

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class DraftShape:
    """Sizes that decide how many parameters a draft has.

    Args:
        vocab_size: Vocabulary of the target (rows of the embedding and of the Markov head's first matrix).
        draft_vocab_size: Vocabulary of the draft's output (rows of the LM head and of the second matrix).
        aux_layers: Captured layers that feed `fc`; the last layer before the norm is not one of them.
    """

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    aux_layers: int
    markov_rank: int
    markov_head_type: str = "vanilla"
    confidence_head: bool = True


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


def draft_parameters(shape: DraftShape) -> DraftParameters:
    """Count the parameters of a draft.

    `2Vd + m d d + 2d + 2Vr + L(2 d H hd + 2 d KV hd + 3 d I + 2d + 2 hd) + (d + r + 1)`, full vocabulary.
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
        confidence=hidden + shape.markov_rank + 1 if shape.confidence_head else 0,
    )


def checkpoint_bytes(parameters: DraftParameters) -> int:
    """Bytes of one resumable checkpoint: fp32 weights, two AdamW moments, frozen weights once."""
    return 12 * parameters.trained + 4 * parameters.frozen


def export_bytes(parameters: DraftParameters, pruned_vocab: bool) -> int:
    """Bytes of the float32 export; the embedding is the target's and is not written."""
    head = parameters.lm_head if pruned_vocab else 0
    return 4 * (parameters.trained + head)


def training_bytes(
    parameters: DraftParameters, batch_tokens: int, anchors: int, block_size: int, shape: DraftShape
) -> int:
    """Memory that training needs: weights, gradients, moments, logits and their gradients, activations.

    An estimate for sizing: the logits of all blocks (draft and target, with gradients and softmax) dominate.
    """
    weights = 16 * parameters.trained + 4 * parameters.frozen + 4 * shape.draft_vocab_size * shape.hidden_size
    positions = anchors * block_size
    logits = 6 * 4 * positions * shape.draft_vocab_size
    activations = (
        4
        * (positions + batch_tokens)
        * shape.num_layers
        * (8 * shape.hidden_size + 3 * shape.intermediate_size)
    )
    return weights + logits + activations
