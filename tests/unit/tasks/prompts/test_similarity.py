"""Exact Jaccard similarity of word 5-grams, against comparing every pair in plain Python."""

from __future__ import annotations

import re
from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.prompts.similarity import Index, clusters, grams, grams_of, jaccard, words

TEXTS = st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=14).map(" ".join)
MANY = st.lists(TEXTS, min_size=1, max_size=12)
LIMITS = st.sampled_from([0.0, 0.2, 1 / 3, 0.5, 0.8, 1.0])


def plain(text: str) -> frozenset[tuple[str, ...]]:
    found = re.findall(r"\w+", text.lower())
    return frozenset(tuple(found[i : i + 5]) for i in range(max(1, len(found) - 4)))


def alike(left: str, right: str) -> float:
    return len(plain(left) & plain(right)) / len(plain(left) | plain(right))


def test_case_and_punctuation_do_not_matter() -> None:
    assert np.array_equal(grams("One, two three FOUR five!"), grams("one two: three four five"))
    assert len(grams("1 2 3 4 5 6 7")) == 3
    assert jaccard(grams("hello there"), grams("there hello")) == 0.0


def test_scripts_without_spaces_are_compared_by_characters() -> None:
    left, right = "请用中文写一首关于冬天大海的短诗送给我姐姐", "请用中文写一首关于冬天大海的短诗送给我弟弟"
    assert 0.6 < jaccard(grams(left), grams(right)) < 1.0
    assert len(words("日本 go 한국")) == 5


def test_a_start_of_words_has_the_grams_of_its_text() -> None:
    text = "one two three four five six seven"
    for count in range(1, 8):
        assert np.array_equal(grams_of(words(text)[:count]), grams(" ".join(text.split()[:count])))


@settings(max_examples=60, deadline=None)
@given(MANY, MANY, LIMITS)
def test_the_index_finds_what_comparing_every_pair_finds(
    left: list[str], right: list[str], above: float
) -> None:
    index = Index([grams(text) for text in left])
    found = {(i, j): value for j, text in enumerate(right) for i, value in index.alike(grams(text), above)}
    pairs = {(i, j): alike(a, b) for i, a in enumerate(left) for j, b in enumerate(right)}
    assert found == {pair: value for pair, value in pairs.items() if value > above}


@settings(max_examples=150, deadline=None)
@given(MANY, LIMITS)
def test_groups_are_those_of_comparing_every_pair(texts: list[str], above: float) -> None:
    label = list(range(len(texts)))
    for i, j in combinations(range(len(texts)), 2):
        if alike(texts[i], texts[j]) > above:
            old, new = max(label[i], label[j]), min(label[i], label[j])
            label = [new if one == old else one for one in label]
    assert clusters([grams(text) for text in texts], above) == label


def test_links_join_what_is_not_alike_and_nothing_is_no_error() -> None:
    sets = [grams(text) for text in ("one", "two", "three", "four")]
    assert clusters(sets, 0.5, [(3, 1), (1, 2)]) == [0, 1, 1, 1]
    assert clusters([], 0.5) == [] and Index([]).alike(sets[0], 0.5) == []


def test_thousands_of_texts_from_one_template_are_one_group() -> None:
    """Every pair is alike, and far fewer are compared: this would take hours with all of them."""
    start = " ".join(f"rule{i}" for i in range(60))
    sets = [grams(f"{start} item {i} of kind {i % 7} and {i * 31}") for i in range(4000)]
    assert set(clusters(sets, 0.5)) == {0}
