"""Loss weights, masks and metric sums on blocks small enough to check by hand."""

from __future__ import annotations

import math

import pytest
import torch

from tasks.train.loss import (
    BlockGrid,
    LossWeights,
    MetricSums,
    TargetPositions,
    block_loss,
    outcome_sums,
)


def outcome(logits: torch.Tensor, weights: LossWeights, valid: list[list[bool]]) -> object:
    targets = TargetPositions(torch.tensor([[0.75, 0.25]]), torch.tensor([0]))
    grid = BlockGrid(torch.tensor(valid), torch.zeros(len(logits), dtype=torch.long), 0)
    return block_loss(logits, None, targets, grid, weights)


def test_total_variation_and_cross_entropy_by_hand() -> None:
    even = torch.zeros(1, 2, requires_grad=True)
    result = outcome(even, LossWeights(0.1, 0.9, 1.0, 4.0), [[True, False]])
    wanted = (0.1 * math.log(2) + 0.9 * 0.25) / (1 + 1e-5)
    assert float(result.loss.detach()) == pytest.approx(wanted)  # type: ignore[attr-defined]
    assert float(result.accept_rate[0, 0]) == pytest.approx(0.75)  # type: ignore[attr-defined]


def test_later_slots_weigh_less() -> None:
    logits = torch.zeros(2, 2)
    result = outcome(logits, LossWeights(0.0, 1.0, 1.0, 2.0), [[True, True]])
    wanted = 0.25 * (1 + math.exp(-0.5)) / (2 + 1e-5)
    assert float(result.loss.detach()) == pytest.approx(wanted)  # type: ignore[attr-defined]


def test_gradient_matches_finite_differences() -> None:
    generator = torch.Generator().manual_seed(0)
    probabilities = torch.rand(3, 6, generator=generator, dtype=torch.float64).softmax(-1)
    targets = TargetPositions(probabilities, probabilities.argmax(-1))
    grid = BlockGrid(torch.ones(2, 2, dtype=torch.bool), torch.tensor([0, 1, 1, 2]), 0)
    logits = torch.randn(4, 6, generator=generator).requires_grad_()

    def value(at: torch.Tensor) -> torch.Tensor:
        return block_loss(at, None, targets, grid, LossWeights(0.3, 0.7, 0.0, 4.0)).loss

    value(logits).backward()
    step = 1e-3
    for row, column in ((0, 0), (1, 3), (3, 5)):
        moved = torch.zeros_like(logits)
        moved[row, column] = step
        difference = (value(logits.detach() + moved) - value(logits.detach() - moved)) / (2 * step)
        assert logits.grad is not None
        assert float(logits.grad[row, column]) == pytest.approx(float(difference.detach()), abs=2e-4)


def test_greedy_length_counts_the_leading_run_and_the_bonus() -> None:
    """Blocks of 3: right-wrong-right accepts 1, right-right-(no loss) accepts 2; plus the bonus."""
    right, wrong = [2.0, 0.0], [0.0, 2.0]
    logits = torch.tensor([right, wrong, right, right, right])
    result = outcome(logits, LossWeights(0.1, 0.9, 1.0, 4.0), [[True] * 3, [True, True, False]])
    sums = MetricSums()
    sums.add(outcome_sums(result))  # type: ignore[arg-type]
    means = sums.means()
    assert means["eal"] == pytest.approx((2 + 3) / 2)
    assert means["full_acc"] == pytest.approx(4 / 5)
    assert means["position_1_acc"] == pytest.approx(1 / 2)


def test_sums_add_over_batches_and_skip_what_was_never_seen() -> None:
    sums = MetricSums()
    sums.add({"eal": (3.0, 2.0), "position_3_acc": (0.0, 0.0)})
    sums.add({"eal": (1.0, 2.0)})
    assert sums.means() == {"eal": 1.0}
