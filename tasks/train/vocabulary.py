"""The draft's vocabulary: the tokens of the target that the draft can propose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tasks.stream.log import IndexEntry


@dataclass(frozen=True)
class DraftVocabulary:
    """Maps between the target's and the draft's token ids.

    Args:
        t2d: `[V]` bool, True for tokens in the draft's vocabulary.
        d2t: `[D]` int64, target id minus draft id (upstream's convention).
        note: What was adjusted, or empty.
    """

    t2d: Tensor | None
    d2t: Tensor | None
    size: int
    note: str = ""

    def target_ids(self) -> Tensor:
        """`[D]` target id of each draft id; only for a pruned vocabulary."""
        assert self.d2t is not None
        return self.d2t + torch.arange(self.size)


def answer_counts(entries: Iterable[IndexEntry]) -> Counter[int]:
    """How often the target produced each token."""
    counts: Counter[int] = Counter()
    for entry in entries:
        counts.update(entry.answer_ids)
    return counts


def choose_vocabulary(counts: Counter[int], wanted: int | None, target_vocab_size: int) -> DraftVocabulary:
    """Take the `wanted` most frequent tokens; ties go to the smaller id.

    A wish beyond the tokens seen is clamped: a token that never occurs cannot be learned.
    """
    if wanted is None or wanted >= target_vocab_size:
        return DraftVocabulary(None, None, target_vocab_size)
    note = ""
    size = wanted
    if wanted > len(counts):
        size = len(counts)
        note = (
            f"train.draft.vocab_size {wanted:,} was lowered to {size:,}, "
            f"the number of distinct tokens in the captured answers"
        )
    return vocabulary_of(
        sorted(counts, key=lambda token: (-counts[token], token))[:size], target_vocab_size, note
    )


def with_coverage(vocabulary: DraftVocabulary, counts: Counter[int]) -> DraftVocabulary:
    """The same vocabulary; its note says how much of the captured answers a pruned one can propose."""
    total = sum(counts.values())
    if vocabulary.t2d is None or total == 0:
        return vocabulary
    covered = sum(count for token, count in counts.items() if vocabulary.t2d[token])
    if covered == total:
        return vocabulary
    note = f"the draft's {vocabulary.size:,} tokens cover {covered / total:.2%} of the captured answers"
    return replace(vocabulary, note="; ".join(part for part in (vocabulary.note, note) if part))


def vocabulary_of(tokens: Iterable[int], target_vocab_size: int, note: str = "") -> DraftVocabulary:
    """The vocabulary of exactly these target ids."""
    ids = torch.tensor(sorted(tokens), dtype=torch.long)
    t2d = torch.zeros(target_vocab_size, dtype=torch.bool)
    t2d[ids] = True
    return DraftVocabulary(t2d, ids - torch.arange(len(ids)), len(ids), note)


def choose_early(
    answers: Counter[int], prompts: Counter[int], wanted: int, target_vocab_size: int, samples: int
) -> DraftVocabulary:
    """Choose before all samples are there: by the answers so far, then by prompts, then by the smallest ids.

    Nothing is clamped: a token not seen yet may come. A byte-pair tokenizer numbers its tokens in the order
    of how common they are, so small ids are the better guess.
    """
    ranked = sorted(answers, key=lambda token: (-answers[token], token))
    ranked += sorted(prompts.keys() - answers.keys(), key=lambda token: (-prompts[token], token))
    known = set(ranked)
    ranked += (token for token in range(target_vocab_size) if token not in known)
    note = (
        f"the {wanted:,} tokens of train.draft.vocab_size were chosen from the first {samples} samples, as "
        f"training began before all were captured; their answers have {len(answers):,} distinct tokens"
    )
    return vocabulary_of(ranked[:wanted], target_vocab_size, note)
