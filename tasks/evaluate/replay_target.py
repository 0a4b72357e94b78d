"""The target's own distribution at the tokens of its answers, over the draft's vocabulary.

Rejection sampling compares with the target's probabilities over its whole vocabulary. Renormalising them over
a pruned one, as a training loss may, would promise more acceptance than an engine gives.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tasks.errors import StageInputError


@dataclass(frozen=True)
class TargetHead:
    """Norm and head of the target.

    Args:
        norm: The target's final norm.
        weight: `[W, H]` rows of its whole vocabulary, float32.
        columns: `[V]` target id of each draft id; None for the whole vocabulary.
    """

    norm: Any
    weight: Tensor
    columns: Tensor | None

    def probabilities(self, states: Tensor) -> Tensor:
        """`[R, V]` from `states [R, H]`, the last layer before the norm; sums to 1 over W, not over V."""
        logits = self.norm(states) @ self.weight.T
        whole = logits.logsumexp(dim=-1, keepdim=True)
        if self.columns is not None:
            logits = logits[:, self.columns]
        return (logits - whole).exp()


def draft_columns(model: Any) -> Tensor | None:
    """`[V]` target id of each draft id; None where the vocabulary is not pruned."""
    if not model.use_draft_vocab:
        return None
    columns: Tensor = model.d2t + torch.arange(len(model.d2t))
    return columns


def head_rows(target_dir: Path) -> tuple[Tensor, bool]:
    """The target's head `[W, H]` as stored, and whether it is its embedding.

    Raises:
        StageInputError: The target's folder has neither.
    """
    from speculators.utils.loading import load_model_layers

    found = load_model_layers(["embed_tokens.weight", "lm_head.weight"], str(target_dir))
    if "lm_head.weight" in found:
        return found["lm_head.weight"], False
    if "embed_tokens.weight" in found:
        return found["embed_tokens.weight"], True
    raise StageInputError(
        "the target holds neither lm_head.weight nor embed_tokens.weight",
        where=str(target_dir),
        hint="point target.model at a complete folder in Hugging Face format",
    )


def target_head(model: Any, target_dir: Path) -> TargetHead:
    """The head beside a loaded draft; it shares the draft's copy where there is one."""
    columns = draft_columns(model)
    if columns is None:
        return TargetHead(model.verifier_norm, model.verifier_lm_head.weight, None)
    stored, tied = head_rows(target_dir)
    weight = model.embed_tokens.weight if tied else stored.float()
    return TargetHead(model.verifier_norm, weight, columns)
