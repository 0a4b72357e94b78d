"""Tau and its parts."""

from tasks.measure.acceptance import PromptCounts, macro, pool, position_rates, tau


def test_tau_counts_the_bonus() -> None:
    assert tau(10, 0) == 1.0
    assert tau(10, 15) == 2.5


def test_no_rounds_is_not_measured() -> None:
    assert tau(0, 0) is None
    assert position_rates(0, (0, 0)) == ()
    assert macro([None, None]) is None


def test_counts_are_pooled_before_rates() -> None:
    whole = pool([PromptCounts(1, 3, (1, 1, 1)), PromptCounts(9, 1, (1,)), PromptCounts(0, 0)])
    assert whole == PromptCounts(10, 4, (2, 1, 1))
    assert position_rates(whole.rounds, whole.per_position) == (0.2, 0.1, 0.1)


def test_macro_leaves_out_what_was_not_measured() -> None:
    assert macro([2.0, None, 4.0]) == 3.0
