"""Algorithm 1: the paper's counterexample, and what holds for any confidences and costs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tasks.evaluate.policy.scheduler import (
    allocate,
    best_budget,
    causal_budget,
    schedule,
    survival,
    threshold,
)

Floats = NDArray[np.float64]
CONFIDENCE = st.sampled_from([0.0, 0.05, 0.3, 0.5, 0.5, 0.8, 0.95, 1.0]) | st.floats(0, 1)
LOADS = st.integers(1, 4).flatmap(
    lambda positions: st.lists(
        st.lists(CONFIDENCE, min_size=positions, max_size=positions), min_size=1, max_size=5
    )
).map(lambda rows: np.array(rows, dtype=np.float64))  # fmt: skip
few = settings(max_examples=60, deadline=None)
APPENDIX_A = np.array([1.0, 0.5, 0.45])


def straightforward(confidences: Floats, speeds: Floats) -> list[int]:
    """Algorithm 1 as the paper writes it: one token after the other, stop at the first that does not pay."""
    chance = np.cumprod(confidences, axis=1)
    pairs = sorted(np.ndindex(*chance.shape), key=lambda pair: (-chance[pair], pair[1], pair[0]))
    lengths, tokens = [0] * len(chance), float(len(chance))
    best = tokens * speeds[0]
    for batch, (request, position) in enumerate(pairs, start=1):
        tokens += chance[request, position]
        if batch >= len(speeds) or tokens * speeds[batch] <= best:
            break
        best = tokens * speeds[batch]
        lengths[request] = position + 1
    return lengths


def speeds_of(confidences: Floats, slopes: list[float]) -> Floats:
    """Steps per second for every budget, from step times that grow by non-decreasing `slopes`."""
    count = confidences.size
    steps = np.sort(np.resize(slopes, count))
    return 1 / (1.0 + np.concatenate([[0.0], np.cumsum(steps)]))


def test_the_papers_counterexample() -> None:
    sure, lost = np.array([[0.8, 0.9]]), np.array([[0.8, 0.0]])

    assert schedule(sure, APPENDIX_A).tolist() == [0]
    assert schedule(lost, APPENDIX_A).tolist() == [0]
    assert best_budget(survival(sure), APPENDIX_A) == 2
    assert best_budget(survival(lost), APPENDIX_A) == 0


@pytest.mark.parametrize(("choose", "expected"), [(causal_budget, 0.7), (best_budget, 0.85)])
def test_looking_ahead_changes_the_output_distribution(choose: object, expected: float) -> None:
    """Target (0.7, 0.3), draft (0.5, 0.5); the second confidence depends on what the first token is."""
    target, draft = (0.7, 0.3), (0.5, 0.5)
    second = (0.9, 0.0)
    first_token = 0.0
    for drafted in (0, 1):
        chance = survival(np.array([[0.8, second[drafted]]]))
        if choose(chance, APPENDIX_A):  # type: ignore[operator]
            kept = min(1.0, target[drafted] / draft[drafted])
            # The first token of the residual distribution max(target - draft, 0) is token 0.
            first_token += draft[drafted] * ((drafted == 0) * kept + (1 - kept))
        else:
            first_token += draft[drafted] * target[0]
    assert first_token == pytest.approx(expected)


@few
@given(LOADS, st.lists(st.floats(0, 0.6), min_size=1, max_size=20), st.booleans())
def test_it_decides_as_the_algorithm_says(confidences: Floats, slopes: list[float], uneven: bool) -> None:
    steps = np.resize(slopes, confidences.size)
    speeds = 1 / (1.0 + np.concatenate([[0.0], np.cumsum(steps if uneven else np.sort(steps))]))
    assert schedule(confidences, speeds).tolist() == straightforward(confidences, speeds)


@few
@given(LOADS, st.integers(0, 20))
def test_a_budget_goes_to_prefixes_and_is_spent(confidences: Floats, budget: int) -> None:
    chance = survival(confidences)
    lengths = allocate(chance, np.array(budget))
    assert lengths.sum() == min(budget, chance.size)
    taken = [chance[r, j] for r in range(len(chance)) for j in range(lengths[r])]
    left = [chance[r, j] for r in range(len(chance)) for j in range(lengths[r], chance.shape[1])]
    assert not taken or not left or min(taken) >= max(left)


@few
@given(LOADS, st.lists(st.floats(0, 0.6), min_size=1, max_size=20), st.integers(1, 30))
def test_a_batch_never_exceeds_its_tokens(confidences: Floats, slopes: list[float], most: int) -> None:
    speeds = speeds_of(confidences, slopes)
    lengths = schedule(confidences, speeds, max_tokens=most)
    assert lengths.sum() + len(confidences) <= max(most, len(confidences))


@few
@given(LOADS, st.lists(st.floats(0, 0.6), min_size=1, max_size=20))
def test_it_never_expects_less_than_without_drafts(confidences: Floats, slopes: list[float]) -> None:
    speeds = 1 / (1.0 + np.concatenate([[0.0], np.cumsum(np.resize(slopes, confidences.size))]))
    lengths = schedule(confidences, speeds)
    chance = survival(confidences)
    expected = len(lengths) + sum(chance[r, :n].sum() for r, n in enumerate(lengths))
    assert expected * speeds[lengths.sum()] >= len(lengths) * speeds[0] - 1e-12


@few
@given(LOADS, st.floats(0, 0.5), st.lists(st.floats(0, 0.2), min_size=1, max_size=8), st.integers(2, 4))
def test_the_budget_per_request_never_grows_with_load(
    confidences: Floats, base: float, slopes: list[float], times: int
) -> None:
    """`times` as many of the same requests, on a machine whose next token never costs less than the last."""
    most = confidences.size * times + len(confidences) * times
    steps = np.sort(np.resize(slopes, most))
    seconds = np.concatenate([[base + 0.01], base + 0.01 + np.cumsum(steps)])
    budgets = []
    for requests in (confidences, np.tile(confidences, (times, 1))):
        lengths = schedule(requests, 1 / seconds[len(requests) : len(requests) + requests.size + 1])
        budgets.append(lengths.sum() / len(requests))
    assert budgets[1] <= budgets[0]


@few
@given(LOADS, st.lists(st.floats(0, 0.6), min_size=1, max_size=20), st.data())
def test_a_token_is_admitted_whatever_later_ones_are(
    confidences: Floats, slopes: list[float], data: st.DataObject
) -> None:
    speeds = speeds_of(confidences, slopes)
    lengths = schedule(confidences, speeds)
    other = confidences.copy()
    for request, length in enumerate(lengths):
        for position in range(length + 1, confidences.shape[1]):
            other[request, position] = data.draw(CONFIDENCE)
    assert schedule(other, speeds).tolist() == lengths.tolist()


@few
@given(LOADS, st.floats(0.1, 1))
def test_batches_side_by_side_are_decided_alone(confidences: Floats, share: float) -> None:
    loads = [confidences, confidences * share, confidences[::-1]]
    speeds = 1 / (1.0 + 0.1 * np.arange(confidences.size + 1))
    together = schedule(np.stack(loads), speeds)
    assert together.tolist() == [schedule(one, speeds).tolist() for one in loads]


def test_free_verification_takes_everything_and_a_costly_one_nothing() -> None:
    confidences = np.full((3, 4), 0.5)
    assert schedule(confidences, np.ones(13)).tolist() == [4, 4, 4]
    assert schedule(confidences, 1 / (1.0 + np.arange(13))).tolist() == [0, 0, 0]


def test_a_threshold_cuts_where_survival_falls_below_it() -> None:
    chance = survival(np.array([[0.9, 0.9, 0.9], [0.4, 1.0, 1.0]]))
    assert threshold(chance, 0.8).tolist() == [2, 0]
