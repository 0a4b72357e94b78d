"""DSpark's loss and its metrics, equal to upstream's on the same blocks but computed once per value.

Upstream evaluates the target's distribution for every slot of every block; slots of overlapping blocks
share positions, so here it is computed once a position and looked up. Rows without a loss are left out.

Letters: N blocks, B slots in a block, M rows with a loss, U positions, D draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

# Upstream adds this to the denominator of the token losses, and a smaller one to that of the confidence.
_TOKEN_EPS = 1e-5
_CONFIDENCE_EPS = 1e-8


@dataclass(frozen=True)
class LossWeights:
    """Weights of the loss terms and the decay over slots."""

    ce: float
    tv: float
    confidence: float
    decay_gamma: float
    kl: float = 0.0


@dataclass(frozen=True)
class TargetPositions:
    """The target's distribution over the draft vocabulary at each position that a slot may predict.

    Args:
        probabilities: `[U, D]` float32.
        labels: `[U]`, the most probable draft token.
    """

    probabilities: Tensor
    labels: Tensor


class _TokenLoss(torch.autograd.Function):
    """Weighted sum of cross entropy, total variation and Kullback-Leibler divergence of the draft from the
    target, with one softmax and a closed-form gradient."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        logits: Tensor,
        probabilities: Tensor,
        rows: Tensor,
        labels: Tensor,
        row_weights: Tensor,
        ce: float,
        tv: float,
        kl: float,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        scores = logits.float()
        proposed = scores.max(dim=-1).indices
        log_sum = scores.logsumexp(dim=-1)
        row = torch.arange(len(labels), device=logits.device)
        cross_entropy = log_sum - scores[row, labels]
        shifted = scores - log_sum[:, None] if scores is logits else scores.sub_(log_sum[:, None])
        wanted = probabilities.index_select(0, rows)
        divergence = _divergence(wanted, shifted) if kl else torch.zeros_like(log_sum)
        draft = shifted.exp_()
        overlap = torch.minimum(draft, wanted).sum(dim=-1)
        row_loss = ce * cross_entropy + tv * (1.0 - overlap)
        if kl:
            row_loss = row_loss + kl * divergence
        total = (row_weights * row_loss).sum()
        if any(ctx.needs_input_grad):
            pull = kl * (draft - wanted) if kl else None
            # d(tv)/d(draft) is -1 where the draft is below the target; through the softmax:
            below = wanted.gt_(draft)
            mass = (below * draft).sum(dim=-1, keepdim=True)
            gradient = draft * (tv * (mass - below) + ce)
            gradient[row, labels] -= ce
            if pull is not None:
                gradient += pull
            ctx.save_for_backward(gradient.mul_(row_weights[:, None]).to(logits.dtype))
        ctx.mark_non_differentiable(cross_entropy, overlap, proposed, divergence)
        return total, cross_entropy, overlap, proposed, divergence

    @staticmethod
    def backward(ctx, total_grad, *_):  # type: ignore[no-untyped-def]
        (gradient,) = ctx.saved_tensors
        return gradient * total_grad.to(gradient.dtype), None, None, None, None, None, None, None


def _divergence(wanted: Tensor, log_draft: Tensor) -> Tensor:
    """`sum p (log p - log q)` of each row: `wanted [M, D]` holds p, `log_draft [M, D]` log q."""
    return torch.special.xlogy(wanted, wanted).sum(dim=-1) - (wanted * log_draft).sum(dim=-1)


@dataclass(frozen=True)
class BlockGrid:
    """Which slots of the N x B grid have a loss, and which target position each of them predicts.

    Args:
        valid: `[N, B]` bool.
        rows: `[M]` index into `TargetPositions` for the valid slots, in grid order.
        first_slot: 0 if the anchor's slot predicts (`sample_from_anchor`), else 1.
    """

    valid: Tensor
    rows: Tensor
    first_slot: int


@dataclass
class BlockOutcome:
    """Loss of one batch and, per slot `[N, B]`, what the metrics need (zero where invalid)."""

    loss: Tensor
    terms: dict[str, Tensor]
    correct: Tensor
    accept_rate: Tensor
    confidence: Tensor | None
    valid: Tensor
    first_slot: int


def block_loss(
    logits: Tensor,
    confidence_logits: Tensor | None,
    targets: TargetPositions,
    grid: BlockGrid,
    weights: LossWeights,
) -> BlockOutcome:
    """Loss and per-slot outcome of a batch of blocks.

    Args:
        logits: `[M, D]` draft logits (Markov bias added) of the valid slots, in grid order.
        confidence_logits: `[M]` or None.
    """
    count = float(grid.valid.sum())
    slots = torch.arange(grid.valid.shape[1], device=logits.device, dtype=torch.float32) - grid.first_slot
    decay = torch.exp(-slots / weights.decay_gamma).expand_as(grid.valid)[grid.valid]
    labels = targets.labels[grid.rows]
    row_weights = decay / (count + _TOKEN_EPS)
    loss, cross_entropy, overlap, proposed, divergence = _TokenLoss.apply(
        logits, targets.probabilities, grid.rows, labels, row_weights, weights.ce, weights.tv, weights.kl
    )
    with torch.no_grad():
        terms = {
            "ce_loss": (row_weights * cross_entropy).sum(),
            "tv_loss": (row_weights * (1.0 - overlap)).sum(),
        }
        if weights.kl:
            terms["kl_div_loss"] = (row_weights * divergence).sum()
        correct = _grid(grid.valid, (proposed == labels).float())
        accept_rate = _grid(grid.valid, overlap)
    confidence = None
    if confidence_logits is not None:
        scores = confidence_logits.float()
        entropy = binary_cross_entropy_with_logits(scores, overlap, reduction="none")
        term = (entropy * decay).sum() / (count + _CONFIDENCE_EPS)
        loss = loss + weights.confidence * term
        terms["confidence_loss"] = term.detach()
        confidence = _grid(grid.valid, scores.detach().sigmoid())
    return BlockOutcome(loss, terms, correct, accept_rate, confidence, grid.valid, grid.first_slot)


def _grid(valid: Tensor, values: Tensor) -> Tensor:
    out = torch.zeros(valid.shape, dtype=torch.float32, device=valid.device)
    out[valid] = values.float()
    return out


def outcome_sums(outcome: BlockOutcome) -> dict[str, tuple[float, float]]:
    """Metric -> (sum, total), which add up over batches; names are upstream's."""
    valid = outcome.valid.float()
    count, blocks = float(valid.sum()), float(outcome.valid.any(dim=1).sum())
    start = outcome.first_slot
    greedy = outcome.correct[:, start:].cumprod(dim=1).sum()
    analytic = (outcome.accept_rate * valid)[:, start:].cumprod(dim=1).sum()
    sums = {name: (float(value), 1.0) for name, value in outcome.terms.items()}
    sums["loss"] = (float(outcome.loss.detach()), 1.0)
    sums["accept_rate"] = (float(outcome.accept_rate.sum()), count)
    sums["accept_len"] = (float(analytic) + blocks, blocks)
    sums["eal"] = (float(greedy) + blocks, blocks)
    sums["full_acc"] = (float(outcome.correct.sum()), count)
    if outcome.confidence is not None:
        error = ((outcome.confidence - outcome.accept_rate).abs() * valid).sum()
        sums["confidence_abs_error"] = (float(error), count)
        sums["confidence_pred_mean"] = (float((outcome.confidence * valid).sum()), count)
    for slot in range(start, outcome.valid.shape[1]):
        right, total = outcome.correct[:, slot].sum(), valid[:, slot].sum()
        sums[f"position_{slot}_acc"] = (float(right), float(total))
    return sums


class MetricSums:
    """Adds the sums of several batches and gives their ratios."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float]] = {}

    def add(self, sums: Mapping[str, tuple[float, float]]) -> None:
        for name, (value, total) in sums.items():
            old = self._sums.get(name, (0.0, 0.0))
            self._sums[name] = (old[0] + value, old[1] + total)

    def means(self) -> dict[str, float]:
        """Ratios; a metric without a single observation is left out."""
        return {name: value / total for name, (value, total) in self._sums.items() if total > 0}
