"""How alike two prompts are: Jaccard similarity of their word 5-grams, exact for every pair.

A set of grams is a rising array of 64-bit hashes. Pairs are found with an index of the rarest grams of each
text (`clusters`) or of all grams of one side (`Index`); both leave out only what cannot exceed the limit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

GRAM_WORDS = 5
_CJK = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
_WORD = re.compile(rf"[{_CJK}]|[^\W{_CJK}]+")
"""A word; each character of a script that is written without spaces counts as one."""
_FACTORS = np.array(
    [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F],
    dtype=np.uint64,
)
_SLACK = 1e-9
"""Keeps rounding from raising a bound by one."""

Grams = NDArray[np.uint64]


@lru_cache(maxsize=2**18)
def _word(word: str) -> int:
    return int.from_bytes(blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def words(text: str) -> Grams:
    """One hash for each word of a text in lower case, in order."""
    return np.fromiter(map(_word, _WORD.findall(text.lower())), dtype=np.uint64)


def grams_of(hashes: Grams) -> Grams:
    """The 5-grams of `words`, each once, rising; fewer words than five are one gram."""
    if len(hashes) < GRAM_WORDS:
        factors = _FACTORS[: len(hashes)]
        return np.array([(hashes * factors).sum(dtype=np.uint64) + np.uint64(len(hashes))], dtype=np.uint64)
    windows = np.lib.stride_tricks.sliding_window_view(hashes, GRAM_WORDS)
    return np.unique((windows * _FACTORS).sum(axis=1, dtype=np.uint64))


def grams(text: str) -> Grams:
    """Word 5-grams of a text in lower case."""
    return grams_of(words(text))


def jaccard(left: NDArray[np.generic], right: NDArray[np.generic]) -> float:
    """Shared grams over all grams of two rising arrays, 0 to 1."""
    shared = len(np.intersect1d(left, right, assume_unique=True))
    return shared / (len(left) + len(right) - shared)


class Index:
    """Texts of one side, asked for what is alike on the other. Cost follows the number of shared grams."""

    def __init__(self, sets: Sequence[Grams]):
        self._sizes = np.array([len(one) for one in sets], dtype=np.int64)
        flat = np.concatenate(sets) if sets else np.empty(0, np.uint64)
        order = np.argsort(flat, kind="stable")
        self._owners = np.repeat(np.arange(len(sets)), self._sizes)[order]
        self._grams, self._starts = np.unique(flat[order], return_index=True)
        self._ends = np.append(self._starts[1:], len(flat))

    def alike(self, own: Grams, above: float) -> list[tuple[int, float]]:
        """Number and similarity of every indexed text whose similarity to `own` exceeds `above`."""
        if not len(self._grams):
            return []
        places = np.minimum(np.searchsorted(self._grams, own), len(self._grams) - 1)
        places = places[self._grams[places] == own]
        if not len(places):
            return []
        owners = [self._owners[self._starts[place] : self._ends[place]] for place in places]
        shared = np.bincount(np.concatenate(owners), minlength=len(self._sizes))
        values = shared / (len(own) + self._sizes - shared)
        return [(int(found), float(values[found])) for found in np.flatnonzero(values > above)]


class _Union:
    """Disjoint sets of numbers."""

    def __init__(self, count: int):
        self._parent = list(range(count))

    def find(self, one: int) -> int:
        parent = self._parent
        while parent[one] != one:
            parent[one] = parent[parent[one]]
            one = parent[one]
        return one

    def join(self, one: int, other: int) -> None:
        first, second = sorted((self.find(one), self.find(other)))
        self._parent[second] = first


def clusters(sets: Sequence[Grams], above: float, linked: Iterable[tuple[int, int]] = ()) -> list[int]:
    """Groups of texts that are connected by pairs more alike than `above`.

    Args:
        sets: From `grams`.
        linked: Pairs that belong together in any case.

    Returns:
        For each text the lowest number of its group.
    """
    union = _Union(len(sets))
    for one, other in linked:
        union.join(one, other)
    if above < 1:
        _join_alike(*_by_rarity(sets), above, union)
    return [union.find(one) for one in range(len(sets))]


def _by_rarity(sets: Sequence[Grams]) -> tuple[list[NDArray[np.int32]], int]:
    """The sets with each gram's rank by how few texts hold it, rising: rare grams come first.

    Returns:
        The ranks, and the first rank of a gram that more than one text holds.
    """
    if not sets:
        return [], 0
    _, inverse, counts = np.unique(np.concatenate(sets), return_inverse=True, return_counts=True)
    ranks = np.empty(len(counts), dtype=np.int32)
    ranks[np.argsort(counts, kind="stable")] = np.arange(len(counts), dtype=np.int32)
    ends = np.cumsum([len(one) for one in sets])
    return [np.sort(one) for one in np.split(ranks[inverse], ends[:-1])], int((counts == 1).sum())


def _join_alike(ranked: Sequence[NDArray[np.int32]], common: int, above: float, union: _Union) -> None:
    """Prefix filter: two texts above the limit share a gram among the rarest of each.

    Texts come shortest first, so the later one is never the shorter: it must be looked up by more of its
    grams (`size - limit * size`) than the earlier has in the index (`size - 2 limit / (1 + limit) * size`).
    """
    postings: dict[int, dict[int, list[int]]] = {}
    for one in sorted(range(len(ranked)), key=lambda number: len(ranked[number])):
        size = len(ranked[one])
        looked_up = size - math.ceil(above * size - _SLACK) + 1
        indexed = size - math.ceil(2 * above / (1 + above) * size - _SLACK) + 1
        start = int(np.searchsorted(ranked[one], common))  # no other text holds the grams before
        tested: set[int] = set()
        for gram in ranked[one][start:looked_up].tolist():
            groups = postings.get(gram)
            if groups is not None:
                _regroup(groups, union)
                _test(one, groups, ranked, above, union, tested)
        for gram in ranked[one][start:indexed].tolist():
            postings.setdefault(gram, {}).setdefault(union.find(one), []).append(one)


def _regroup(groups: dict[int, list[int]], union: _Union) -> None:
    """Bring the groups under one gram up to date with what was joined since."""
    for root in [root for root in groups if union.find(root) != root]:
        moved = groups.pop(root)
        kept = groups.setdefault(union.find(root), [])
        if len(kept) < len(moved):
            kept, moved = moved, kept
            groups[union.find(root)] = kept
        kept.extend(moved)


def _test(
    one: int,
    groups: dict[int, list[int]],
    ranked: Sequence[NDArray[np.int32]],
    above: float,
    union: _Union,
    tested: set[int],
) -> None:
    """Join a text with every group that holds one like it; groups that it is in already cost nothing."""
    least = above * len(ranked[one])
    for root, members in groups.items():
        if union.find(root) == union.find(one):
            continue
        for other in members:
            if other in tested or len(ranked[other]) < least:
                continue
            tested.add(other)
            if jaccard(ranked[one], ranked[other]) > above:
                union.join(one, other)
                break
