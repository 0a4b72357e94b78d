"""Bytes that a DSpark draft takes in memory and on disk, from its parameters."""

from __future__ import annotations

from tasks.train.size import DraftParameters, DraftShape

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def checkpoint_bytes(parameters: DraftParameters) -> int:
    """Bytes of one resumable checkpoint, at most: trained weights and two AdamW moments, fp32."""
    return 12 * parameters.trained


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
