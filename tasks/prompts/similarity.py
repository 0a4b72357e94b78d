"""How alike two prompts are: Jaccard similarity of their word 5-grams.

The value is computed exactly, for every pair that shares a 5-gram: only the evaluation prompts are
indexed, so the cost follows the number of shared 5-grams. MinHash, which estimates the same value,
would miss pairs near the limit.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

GRAM_WORDS = 5
_WORD = re.compile(r"\w+")

Gram = tuple[str, ...]


@dataclass(frozen=True)
class Alike:
    """A pair of prompts and its similarity, 0 to 1."""

    evaluation_id: str
    training_id: str
    value: float


def grams(text: str) -> frozenset[Gram]:
    """Word 5-grams of a text in lower case; a shorter text is one gram."""
    words = _WORD.findall(text.lower())
    if len(words) <= GRAM_WORDS:
        return frozenset({tuple(words)})
    return frozenset(tuple(words[i : i + GRAM_WORDS]) for i in range(len(words) - GRAM_WORDS + 1))


def closest(
    evaluation: Mapping[str, str], training: Iterable[tuple[str, str]], above: float
) -> Iterator[Alike]:
    """Every pair whose similarity exceeds `above`.

    Args:
        evaluation: Id -> text.
        training: Pairs of id and text; read once.
    """
    by_gram: dict[Gram, list[str]] = defaultdict(list)
    sizes: dict[str, int] = {}
    for identity, text in evaluation.items():
        own = grams(text)
        sizes[identity] = len(own)
        for gram in own:
            by_gram[gram].append(identity)
    for training_id, text in training:
        own = grams(text)
        shared = Counter(identity for gram in own for identity in by_gram.get(gram, ()))
        for identity, count in shared.items():
            value = count / (len(own) + sizes[identity] - count)
            if value > above:
                yield Alike(identity, training_id, value)
