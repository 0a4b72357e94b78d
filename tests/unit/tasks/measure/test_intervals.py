"""Bootstrap intervals over prompts."""

import pytest

from tasks.measure.acceptance import PromptCounts
from tasks.measure.intervals import (
    Bootstrap,
    domain_interval,
    macro_interval,
    paired_macro_difference,
    pooled_interval,
)

HOW = Bootstrap(samples=1000, confidence=0.90, seed=0)
EASY = [PromptCounts(10, 30), PromptCounts(10, 20), PromptCounts(10, 40), PromptCounts(10, 30)]
HARD = [PromptCounts(40, 10), PromptCounts(40, 20), PromptCounts(40, 0), PromptCounts(40, 10)]


def test_equal_prompts_leave_no_spread() -> None:
    interval = domain_interval("a", [PromptCounts(10, 5)] * 6, HOW)
    assert (interval.value, interval.low, interval.high) == (1.5, 1.5, 1.5)


def test_the_interval_holds_the_value_and_narrows_with_confidence() -> None:
    wide = domain_interval("a", EASY, HOW)
    narrow = domain_interval("a", EASY, Bootstrap(1000, 0.60, 0))
    assert wide.value == 4.0
    assert wide.low is not None and wide.high is not None
    assert narrow.low is not None and narrow.high is not None
    assert wide.low <= narrow.low <= 4.0 <= narrow.high <= wide.high
    assert 3.0 <= wide.low < wide.high <= 5.0


def test_one_seed_one_result() -> None:
    domains = {"a": EASY, "b": HARD}
    assert macro_interval(domains, HOW) == macro_interval(domains, HOW)
    assert macro_interval(domains, HOW) != macro_interval(domains, Bootstrap(1000, 0.90, 1))


def test_a_domain_keeps_its_interval_when_another_is_added() -> None:
    alone = domain_interval("a", EASY, HOW)
    macro_interval({"b": HARD, "a": EASY}, HOW)
    assert domain_interval("a", EASY, HOW) == alone


def test_macro_weighs_domains_and_pooled_weighs_rounds() -> None:
    domains = {"a": EASY, "b": HARD}
    assert macro_interval(domains, HOW).value == pytest.approx((4.0 + 1.25) / 2)
    assert pooled_interval(domains, HOW).value == pytest.approx(1 + 160 / 200)


def test_an_empty_domain_is_not_measured_and_spoils_nothing() -> None:
    empty = [PromptCounts(0, 0), PromptCounts(0, 0)]
    assert domain_interval("c", [], HOW).value is None
    assert domain_interval("c", empty, HOW).value is None
    assert macro_interval({"a": EASY, "c": empty, "d": []}, HOW) == macro_interval({"a": EASY}, HOW)
    assert macro_interval({"c": empty}, HOW).value is None
    assert pooled_interval({}, HOW).value is None


def test_answers_without_a_round_do_not_make_bounds_undefined() -> None:
    interval = domain_interval("a", [PromptCounts(10, 5), PromptCounts(0, 0)], HOW)
    assert (interval.value, interval.low, interval.high) == (1.5, 1.5, 1.5)


def test_a_pair_is_judged_on_the_same_prompts() -> None:
    better = [PromptCounts(part.rounds, part.accepted + part.rounds) for part in EASY]
    gain = paired_macro_difference({"a": better}, {"a": EASY}, HOW)
    assert gain.value == pytest.approx(1.0)
    assert gain.low == pytest.approx(1.0) and gain.high == pytest.approx(1.0)


def test_a_pair_needs_the_same_prompts() -> None:
    with pytest.raises(ValueError, match="same prompts"):
        paired_macro_difference({"a": EASY}, {"a": EASY[:2]}, HOW)
