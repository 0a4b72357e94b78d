"""Rounds played against a cost table."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tasks.evaluate.policy.costs import cost_table
from tasks.evaluate.policy.models import CostTable
from tasks.evaluate.policy.reliability import sigmoid
from tasks.evaluate.policy.simulation import by_adaptive_verification, by_scheduler, play, steps_per_s
from tasks.evaluate.policy.walks import Walks, walk_fixed, walks_of

Heads = tuple[Walks, Any]


def table(free_tokens: int, per_token_s: float) -> CostTable:
    """10 ms up to `free_tokens`, then `per_token_s` for each more."""
    sizes = sorted({1, free_tokens, 2 * free_tokens, 256})
    seconds = [0.010 + max(0, size - free_tokens) * per_token_s for size in sizes]
    found = cost_table([(size, 1 / one) for size, one in zip(sizes, seconds, strict=True)])
    assert found is not None
    return found


def head(invent: Callable[..., Any], **options: Any) -> Heads:
    slots = invent(**options).slots
    walks = walks_of(slots)
    return walks, sigmoid(slots.confidence[walks.rows])


@pytest.mark.parametrize("requests", [1, 3, 16])
def test_a_fixed_number_plays_as_it_walks(requests: int, invent: Callable[..., Any]) -> None:
    walks, _ = head(invent, prompts=20)
    costs = table(8, 0.001)
    played = play(walks, costs, requests, 2, lambda here, _: np.full(here.shape, 2), seed=0)
    walked = walk_fixed(walks, 2)
    assert (played.rounds >= walked.rounds).all()
    assert played.tokens / played.rounds == pytest.approx(walked.tokens / walked.rounds)
    assert played.verified == pytest.approx(2 * played.rounds)
    one_step = 0.010 + max(0, 3 * requests - 8) * 0.001
    assert played.seconds == pytest.approx(one_step * played.rounds)


def test_the_same_seed_plays_the_same(invent: Callable[..., Any]) -> None:
    walks, confidences = head(invent)
    costs = table(8, 0.001)
    choose = by_scheduler(confidences, steps_per_s(costs, 4, 4))
    first, again, other = (play(walks, costs, 4, 1, choose, seed) for seed in (1, 1, 2))
    assert np.array_equal(first.seconds, again.seconds)
    assert not np.array_equal(first.seconds, other.seconds)


def test_more_load_means_fewer_draft_tokens_per_request(invent: Callable[..., Any]) -> None:
    walks, confidences = head(invent, prompts=60)
    costs = table(16, 0.0005)
    budgets = []
    for requests in (1, 2, 4, 8, 16, 32, 64):
        choose = by_scheduler(confidences, steps_per_s(costs, requests, 4))
        played = play(walks, costs, requests, 2, choose, seed=0)
        budgets.append(played.verified.sum() / played.rounds.sum())
    assert budgets[0] > 3.5 and budgets[-1] < 0.8
    # The rounds that are met differ a little, by the anchors that each load leads to.
    assert all(later <= earlier + 0.1 for earlier, later in pairwise(budgets))


def test_a_head_that_knows_beats_every_fixed_number_under_load(invent: Callable[..., Any]) -> None:
    """The head knows which blocks give two tokens or more."""
    slots = invent(prompts=60, low=0.02, high=0.98).slots
    sure = slots.prefix_right.sum(axis=1) >= 2
    walks = walks_of(slots)
    confidences = np.where(sure[:, None], 0.95, 0.05) * np.ones(slots.right.shape)
    costs = table(16, 0.0005)
    played = play(walks, costs, 16, 3, by_scheduler(confidences[walks.rows], steps_per_s(costs, 16, 4)), 0)
    speed = played.tokens.sum() / played.seconds.sum()
    for tokens in range(5):
        fixed = play(walks, costs, 16, 3, lambda here, _, n=tokens: np.full(here.shape, n), 0)  # type: ignore[misc]
        assert speed > fixed.tokens.sum() / fixed.seconds.sum()


def test_adaptive_verification_sizes_its_budget_by_the_round_before() -> None:
    confidences = np.array([[0.9, 0.9], [0.01, 0.01]])
    speeds = 1 / (0.010 + np.array([0.0, 0.004, 0.008]))
    choose = by_adaptive_verification(confidences, speeds)
    here = np.array([[0], [1], [0], [1]])
    before = np.array([[0], [0], [1], [-1]])
    # Sure before: two tokens, whatever this block is. Unsure before: none. A new request counts as sure.
    assert choose(here, before).ravel().tolist() == [2, 2, 0, 2]
