"""Shares by conversation: their errors, and what a difference says."""

from __future__ import annotations

import numpy as np
import pytest

from tasks.measure.shares import Share, likeness, share_of, shortfall


def test_the_error_is_that_of_conversations() -> None:
    """Conversations that are all right or all wrong are as good as one place each"""
    alike = share_of([(10, 10)] * 6 + [(0, 10)] * 14)
    assert alike is not None and (alike.value, alike.places, alike.conversations) == (0.3, 200, 20)
    assert alike.error == pytest.approx((0.3 * 0.7 / 19) ** 0.5)
    assert likeness([alike]) == pytest.approx(1.0, abs=0.01)


def test_places_that_do_not_resemble_each_other_count_alone() -> None:
    draws = np.random.default_rng(0).binomial(50, 0.3, size=200)
    mixed = share_of([(int(right), 50) for right in draws])
    assert mixed is not None and mixed.error == pytest.approx((0.21 / 10_000) ** 0.5, rel=0.15)
    assert likeness([mixed]) < 0.01


def test_nothing_is_said_of_nothing() -> None:
    assert share_of([]) is None and share_of([(0, 0)]) is None
    one = share_of([(3, 10), (0, 0)])
    assert one is not None and one.conversations == 1 and one.error is None


def test_a_share_of_few_conversations_is_never_certain() -> None:
    short = shortfall(Share(0.0, 30, 2, 0.0), Share(1.0, 30, 2, 0.0))
    assert short.points == 1.0 and short.limit is None and not short.is_certain


@pytest.mark.parametrize(("conversations", "quantile"), [(4, 5.208), (10, 3.610), (100, 3.131)])
def test_the_limit_is_a_quantile_of_students_t(conversations: int, quantile: float) -> None:
    """At 0.999, as printed in tables, for 6, 18 and 198 degrees of freedom"""
    half = Share(0.5, 100, conversations, 0.05)
    limit = shortfall(half, half).limit
    assert limit == pytest.approx(quantile, rel=0.01)


def test_an_exact_promise_has_no_error_of_its_own() -> None:
    seen = Share(0.1, 1000, 50, 0.02)
    assert shortfall(seen, 0.2).error < shortfall(seen, Share(0.2, 1000, 50, 0.02)).error
    assert shortfall(seen, 0.2).is_certain and not shortfall(seen, 0.12).is_certain
