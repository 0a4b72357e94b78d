"""Held-out metrics along a block, by hand and against upstream's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.train.heldout import certainty, first_tokens
from tasks.train.loss import BlockOutcome, MetricSums
from tasks.train.run import train_draft
from tasks.train.validation import conditional_accuracy, finished, slope, validation_sums
from tests.unit.tasks.train.conftest import TinyWorld


def outcome(
    correct: list[list[float]],
    overlap: list[list[float]],
    confidence: list[list[float]] | None,
    valid: list[list[bool]],
    first: int = 0,
) -> BlockOutcome:
    return BlockOutcome(
        torch.zeros(()),
        {},
        torch.tensor(correct),
        torch.tensor(overlap),
        None if confidence is None else torch.tensor(confidence),
        torch.tensor(valid),
        first,
    )


ALL = [[True] * 3] * 4


def means(*outcomes: BlockOutcome) -> dict[str, float]:
    sums = MetricSums()
    for one in outcomes:
        sums.add(validation_sums(one))
    return finished(sums.means())


def test_conditional_accuracy_counts_blocks_that_got_there() -> None:
    """4 blocks: 3 right at once, of these 2 at the second position, of these 1 at the third."""
    correct = [[1.0, 1, 1], [1, 1, 0], [1, 0, 1], [0, 1, 1]]
    found = means(outcome(correct, [[0.5] * 3] * 4, None, ALL))
    assert conditional_accuracy(found) == {1: 3 / 4, 2: 2 / 3, 3: 1 / 2}
    assert found["suffix_decay"] == pytest.approx((1 / 2 - 3 / 4) / 2)


def test_conditional_overlap_is_weighted_by_how_likely_it_is_to_get_there() -> None:
    found = means(outcome([[0.0] * 3] * 2, [[0.5, 0.4, 0.2], [1.0, 0.8, 0.6]], None, ALL[:2]))
    assert found["conditional_1_overlap"] == pytest.approx(0.75)
    assert found["conditional_2_overlap"] == pytest.approx((0.5 * 0.4 + 1.0 * 0.8) / 1.5)
    assert found["conditional_3_overlap"] == pytest.approx((0.2 * 0.2 + 0.8 * 0.6) / 1.0)


def test_slots_without_a_loss_count_neither_way() -> None:
    valid = [[True, True, False], [True, False, False]]
    found = means(outcome([[1.0, 1, 0], [1, 0, 0]], [[0.5, 0.5, 0]] * 2, None, valid))
    assert conditional_accuracy(found) == {1: 1.0, 2: 1.0}


def test_the_known_slot_is_left_out() -> None:
    found = means(outcome([[0.0, 1, 0]], [[0, 0.5, 0.5]], None, [[False, True, True]], first=1))
    assert conditional_accuracy(found) == {1: 1.0, 2: 0.0}


def test_confidence_error_and_calibration_by_hand() -> None:
    predicted, overlap = [[0.95, 0.95], [0.15, 0.55]], [[1.0, 0.7], [0.25, 0.55]]
    found = means(outcome([[0.0, 0]] * 2, overlap, predicted, [[True] * 2] * 2))
    assert found["confidence_1_error"] == pytest.approx((0.05 + 0.10) / 2)
    assert found["confidence_2_error"] == pytest.approx(0.25 / 2)
    # Bin [0.9, 1): -0.05 and +0.25; bin [0.1, 0.2): -0.10; bin [0.5, 0.6): 0.
    assert found["confidence_calibration_error"] == pytest.approx((0.20 + 0.10) / 4)
    assert not [name for name in found if name.startswith("calibration_bin")]


def test_batches_add_up() -> None:
    one = outcome([[1.0, 1, 1]], [[1.0, 0.5, 0.5]], [[0.9, 0.9, 0.9]], ALL[:1])
    two = outcome([[1.0, 0, 1]], [[0.4, 0.2, 0.1]], [[0.3, 0.3, 0.3]], ALL[:1])
    both = outcome(
        [[1.0, 1, 1], [1, 0, 1]], [[1.0, 0.5, 0.5], [0.4, 0.2, 0.1]], [[0.9] * 3, [0.3] * 3], ALL[:2]
    )
    apart, together = means(one, two), means(both)
    assert apart.keys() == together.keys()
    for name, value in together.items():
        assert apart[name] == pytest.approx(value), name


def test_first_tokens_are_counted_by_conversation() -> None:
    """Blocks without a first slot count nowhere; the known slot before it is passed over"""
    found = outcome(
        [[0.0, 1, 0], [0, 0, 1], [0, 1, 1], [0, 1, 0]],
        [[0, 0.5, 0.5]] * 4,
        None,
        [[False, True, True]] * 3 + [[False, False, False]],
        first=1,
    )
    counts = first_tokens(found, torch.tensor([4, 4, 7, 7]))
    assert counts == [(1, 2), (1, 1)]
    sure = certainty(counts)
    assert sure["held_out_blocks"] == 3 and sure["held_out_conversations"] == 2
    assert sure["conditional_1_se"] == pytest.approx((2 * ((1 / 3) ** 2 + (1 / 3) ** 2)) ** 0.5 / 3)
    assert certainty([]) == {} and "conditional_1_se" not in certainty([(1, 2)])


def test_slope_of_a_line() -> None:
    assert slope({1: 0.9, 2: 0.7, 3: 0.5}) == pytest.approx(-0.2)
    assert slope({1: 0.5, 3: 0.5}) == 0


def test_each_epoch_writes_them(world: TinyWorld, tmp_path: Path, quiet: Any, never: Any) -> None:
    result = train_draft(world.settings(tmp_path, epochs=2), quiet, never)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text("utf-8").splitlines()]
    held = [row for row in rows if row["split"] == "held_out"]
    assert len(held) == 3
    wanted = {"eal", "accept_len", "suffix_decay", "confidence_abs_error", "confidence_cumprod_bias"}
    wanted |= {f"position_{slot}_acc" for slot in range(4)} | {"conditional_1_acc", "conditional_1_overlap"}
    wanted |= {f"confidence_{k}_error" for k in range(1, 5)} | {"confidence_calibration_error"}
    for row in held:
        # Position 1 is reached by every block, so there it is the plain accuracy.
        assert row["conditional_1_acc"] == pytest.approx(row["position_0_acc"])
        assert row["held_out_blocks"] >= row["held_out_conversations"] >= 1 and row["conditional_1_se"] >= 0
        assert row["eal"] == pytest.approx(1 + _greedy(row), rel=0.2)
        # An untrained draft may never reach the second position.
        assert wanted - row.keys() <= {f"conditional_{k}_acc" for k in range(2, 5)} | {"suffix_decay"}
    assert wanted & result.metrics.keys() >= {"conditional_1_acc", "confidence_abs_error"}


def _greedy(row: dict[str, Any]) -> float:
    """Expected accepted tokens from the conditional accuracies; blocks that an answer's end cuts differ."""
    product, total = 1.0, 0.0
    for k in range(1, 5):
        product *= row.get(f"conditional_{k}_acc", 0.0)
        total += product
    return total
