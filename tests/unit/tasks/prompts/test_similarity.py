"""Exact Jaccard similarity of word 5-grams."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.prompts.similarity import closest, grams

TEXTS = st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=14).map(" ".join)


def test_case_and_punctuation_do_not_matter() -> None:
    assert grams("One, two three FOUR five!") == grams("one two: three four five")
    assert len(grams("1 2 3 4 5 6 7")) == 3


@settings(max_examples=60, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=5), st.lists(TEXTS, min_size=1, max_size=5))
def test_equals_comparing_every_pair(left: list[str], right: list[str]) -> None:
    found = {
        (pair.evaluation_id, pair.training_id): pair.value
        for pair in closest(
            {str(i): text for i, text in enumerate(left)}, ((str(j), t) for j, t in enumerate(right)), 0.3
        )
    }
    expected = {}
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            value = len(grams(a) & grams(b)) / len(grams(a) | grams(b))
            if value > 0.3:
                expected[str(i), str(j)] = value
    assert found == expected
