"""Errors and areas against small cases and against other ways of computing them."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.evaluate.policy.reliability import (
    area_under_curve,
    expected_error,
    expected_noise,
    reliability,
    sigmoid,
)


def test_the_error_is_the_mean_distance_over_bins() -> None:
    predicted = np.array([0.1, 0.1, 0.9, 0.9])
    happened = np.array([False, True, True, True])
    # Two samples 0.4 too low on average, two 0.1 too low.
    assert expected_error(predicted, happened, 10) == pytest.approx(0.25)


def test_the_diagram_leaves_out_empty_bins_and_holds_the_edges() -> None:
    found = reliability(np.array([0.0, 1.0, 1.0]), np.array([False, True, False]), 20)
    assert (found.counts, found.confidence, found.accepted) == ((1, 2), (0.0, 1.0), (0.0, 0.5))
    assert (found.total, found.total_accepted) == (3, 2 - 1)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([0.1, 0.2, 0.2, 0.5, 0.9]), st.booleans()), min_size=1, max_size=30)
)
def test_the_area_counts_pairs_and_ties_as_half(samples: list[tuple[float, bool]]) -> None:
    predicted, happened = np.array([p for p, _ in samples]), np.array([h for _, h in samples])
    pairs = [
        1.0 if yes > no else 0.5 if yes == no else 0.0
        for yes, no in product(predicted[happened], predicted[~happened])
    ]
    found = area_under_curve(predicted, happened)
    assert found == (pytest.approx(sum(pairs) / len(pairs)) if pairs else None)


def test_nothing_is_measured_without_samples() -> None:
    nothing = np.array([]), np.array([], dtype=bool)
    found = reliability(*nothing, 20)
    assert (found.ece, found.noise, found.auc, found.total) == (None, None, None, 0)
    assert expected_error(*nothing, 20) is None and expected_noise(nothing[0], 20) is None


def test_a_calibrated_head_shows_the_expected_noise() -> None:
    random = np.random.default_rng(0)
    predicted = random.uniform(size=400)
    errors = [expected_error(predicted, random.uniform(size=400) < predicted, 20) for _ in range(300)]
    assert np.mean(np.array(errors, dtype=float)) == pytest.approx(expected_noise(predicted, 20), rel=0.06)


def test_extreme_logits_are_finite() -> None:
    found = sigmoid(np.array([-1e30, -40.0, 0.0, 40.0, 1e30]))
    assert np.isfinite(found).all() and found[0] == 0 and found[2] == 0.5 and found[4] == 1
