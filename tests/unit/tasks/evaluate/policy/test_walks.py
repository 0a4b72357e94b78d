"""Walks over slots are the walks over tokens, for any number of draft tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.evaluate.policy.slots import Slots
from tasks.evaluate.policy.walks import walk_fixed, walks_of
from tasks.evaluate.walk import walk

BLOCK = 3
ANSWERS = st.lists(st.lists(st.integers(0, 1), min_size=2, max_size=9), min_size=1, max_size=4)


def slots_of(answers: list[list[int]], drafted: list[list[list[int]]], shuffled: bool) -> Slots:
    """Slots of blocks that were drafted at every anchor, as replay writes them."""
    rows = []
    for prompt, answer in enumerate(answers):
        for anchor in range(len(answer) - 1):
            following = answer[anchor + 1 : anchor + 1 + BLOCK]
            known = [position < len(following) for position in range(BLOCK)]
            guesses = drafted[prompt][anchor]
            right = [ok and guesses[i] == following[i] for i, ok in enumerate(known)]
            rows.append((prompt, anchor, right, known))
    if shuffled:
        rows.reverse()
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    flat = np.zeros(len(rows), dtype=bool)
    shape = (len(rows), BLOCK)
    return Slots(None, np.zeros(shape), columns[2], columns[3], columns[0], columns[1], flat)


@settings(deadline=None, max_examples=60)
@given(ANSWERS, st.randoms(use_true_random=False), st.booleans())
def test_any_number_of_draft_tokens_walks_as_replay_does(
    answers: list[list[int]], random: Any, shuffled: bool
) -> None:
    drafted = [[[random.randint(0, 1) for _ in range(BLOCK)] for _ in answer] for answer in answers]
    walks = walks_of(slots_of(answers, drafted, shuffled))
    for tokens in range(BLOCK + 1):
        played = walk_fixed(walks, tokens)
        for prompt, answer in enumerate(answers):
            expected = walk([block[:tokens] for block in drafted[prompt]], answer).counts
            assert (played.rounds[prompt], played.accepted[prompt]) == (expected.rounds, expected.accepted)


def test_prompts_can_be_left_out(invent: Callable[..., Any]) -> None:
    slots = invent(prompts=6).slots
    some = np.array([True, False, True, False, False, True])
    all_of, part = walks_of(slots), walks_of(slots, some)
    assert (all_of.prompts, part.prompts) == (6, 3)
    assert walk_fixed(part, 4).rounds.tolist() == walk_fixed(all_of, 4).rounds[some].tolist()
    assert slots.prompt[part.rows].tolist() == np.repeat([0, 2, 5], 49).tolist()


def test_nothing_drafted_is_no_walk(invent: Callable[..., Any]) -> None:
    none = walks_of(invent(prompts=2).slots, np.array([False, False]))
    assert none.prompts == 0 and walk_fixed(none, 2).rounds.tolist() == []


def test_rounds_are_where_the_full_walk_starts(invent: Callable[..., Any]) -> None:
    slots = invent(prompts=8).slots
    assert walk_fixed(walks_of(slots), 4).rounds.sum() == pytest.approx(slots.round.sum())
