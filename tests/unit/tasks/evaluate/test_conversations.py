"""States of one conversation are drawn together."""

from __future__ import annotations

import pytest

from tasks.evaluate.assemble import ReplayRow
from tasks.evaluate.conversations import conversations, drawn_together
from tasks.measure.acceptance import PromptCounts
from tasks.measure.intervals import Bootstrap, domain_interval


def test_a_prompt_that_goes_on_belongs_to_the_one_it_begins_with() -> None:
    first, second, third = (1, 2, 3), (1, 2, 3, 9, 9), (1, 2, 3, 9, 9, 4)
    other, apart = (1, 2, 4), (5,)
    assert conversations([third, other, first, apart, second]) == [2, 1, 2, 3, 2]


def test_equal_prompts_and_none() -> None:
    assert len(set(conversations([(1, 2), (1, 2)]))) == 1
    assert conversations([]) == []


def row(number: int, prompt: tuple[int, ...], accepted: int) -> ReplayRow:
    walks = {"8": {"rounds": 10, "accepted": accepted, "per_position": [accepted]}}
    return ReplayRow(f"p{number}", "qa", prompt, (1,), walks)


def test_conversations_widen_the_interval_and_keep_the_value() -> None:
    """Four states of each conversation tell no more than one of them."""
    rows = [
        row(10 * c + state, (c, *range(state)), accepted)
        for c, accepted in enumerate((2, 8, 3, 9, 1, 7), start=100)
        for state in range(4)
    ]
    how = Bootstrap(2000, 0.9, 0)
    units = drawn_together(rows, 8)["qa"]
    assert units[0] == PromptCounts(40, 8, (8,)) and len(units) == 6
    apart = domain_interval("qa", [one.counts(8) for one in rows], how)
    together = domain_interval("qa", units, how)
    assert together.value == pytest.approx(apart.value)
    assert (together.high or 0) - (together.low or 0) > 1.5 * ((apart.high or 0) - (apart.low or 0))
