"""The prompts of a run: read, filtered, limited, split, and checked against leaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from profiles.prompting import Prompts
from profiles.schema import Profile
from tasks.errors import UsageError
from tasks.prompts.bad_row import Skipped
from tasks.prompts.conversation import conversation_hash
from tasks.prompts.counts import PromptCounts, SideCounts, answer_tokens, side_counts
from tasks.prompts.filters import (
    in_order,
    of_length,
    without_contaminated,
    without_duplicates,
    without_near_duplicates,
)
from tasks.prompts.prompt import Message, Prompt, RecordedAnswer, Split, text_of
from tasks.prompts.read import Reading, read_side
from tasks.prompts.rows import Row
from tasks.prompts.splits import MIN_HELD_OUT, held_out_rows
from tasks.stage import canonical, sha256_text

__all__ = [
    "MIN_HELD_OUT",
    "Message",
    "Prompt",
    "PromptSet",
    "RecordedAnswer",
    "conversation_hash",
    "load_prompts",
]


@dataclass(frozen=True)
class PromptSet:
    """All prompts of a run; training ones first, in the order of the files."""

    prompts: tuple[Prompt, ...]
    skipped: tuple[Skipped, ...]
    digest: str
    """SHA-256 over everything of every prompt: what a fingerprint needs."""
    counts: PromptCounts

    def split(self, name: str) -> list[Prompt]:
        return [prompt for prompt in self.prompts if prompt.split == name]


def load_prompts(profile: Profile) -> PromptSet:
    """Read the prompts that a profile names.

    Raises:
        UsageError: A file is missing, empty or of another kind; too many rows are bad; nothing is left to
            train on or to hold out; or an evaluation prompt resembles a training prompt and
            `prompts.contaminated` is `refuse`.
    """
    wanted, seen = profile.prompts, set[str]()
    train_read = _train_side(wanted, seen)
    evaluate_read = read_side(wanted.evaluate, "prompts.evaluate", wanted.max_bad_rows, seen)
    train_dropped, evaluate_dropped = Counter[str](), Counter[str]()
    evaluate_rows = _evaluation_rows(evaluate_read, wanted, evaluate_dropped)
    train_rows = _training_rows(train_read, evaluate_rows, wanted, train_dropped) if wanted.train else []
    train_rows = _limited(train_rows, wanted.train_per_domain, wanted, train_dropped)
    evaluate_rows = _limited(evaluate_rows, wanted.evaluate_per_domain, wanted, evaluate_dropped)
    held, leaks = set[str](), 0
    if train_rows:
        held, leaks = held_out_rows(train_rows, wanted.held_out, wanted.max_similarity, wanted.seed)
    train = [
        prompt for row in train_rows for prompt in _prompts(row, "held_out" if row.id in held else "train")
    ]
    evaluate = [prompt for row in evaluate_rows for prompt in _prompts(row, "evaluate")]
    tokens, estimated = answer_tokens([prompt for prompt in train if prompt.split == "train"])
    counts = PromptCounts(
        train=_side(train_read, train_dropped, train_rows, train),
        evaluate=_side(evaluate_read, evaluate_dropped, evaluate_rows, evaluate),
        held_out=sum(prompt.split == "held_out" for prompt in train),
        leaks=leaks,
        recorded=sum(prompt.recorded is not None for prompt in train),
        recorded_tokens=tokens,
        recorded_tokens_estimated=estimated,
    )
    prompts = (*train, *evaluate)
    digest = sha256_text(canonical([prompt.record() for prompt in prompts]))
    return PromptSet(prompts, (*train_read.skipped, *evaluate_read.skipped), digest, counts)


def _train_side(wanted: Prompts, seen: set[str]) -> Reading:
    """Training rows; none for a profile that names no source, which only measures."""
    return read_side(wanted.train, "prompts.train", wanted.max_bad_rows, seen) if wanted.train else Reading()


def _evaluation_rows(reading: Reading, wanted: Prompts, dropped: Counter[str]) -> list[Row]:
    """One prompt of each conversation, so that no conversation weighs more than another."""
    last = [Row(row.id, row.domain, row.messages, row.tools, row.samples[-1:]) for row in reading.rows]
    return list(without_duplicates(last, in_order(last, wanted.seed), dropped).values())


def _training_rows(
    reading: Reading, evaluate: Sequence[Row], wanted: Prompts, dropped: Counter[str]
) -> list[Row]:
    """Rows that pass every filter.

    Raises:
        UsageError: None does.
    """
    rows = of_length(reading.rows, wanted, dropped)
    order = in_order(rows, wanted.seed)
    distinct = without_duplicates(rows, order, dropped)
    rows = without_near_duplicates(distinct, order, wanted.near_duplicate, dropped)
    evaluation = [(row.id, text_of(row.messages)) for row in evaluate]
    rows = without_contaminated(rows, evaluation, wanted, dropped)
    if not rows:
        reasons = ", ".join(f"{count} {reason}" for reason, count in dropped.most_common() if count)
        raise UsageError(
            f"nothing is left to train on: of {reading.total} rows, the first of which is "
            f"'{reading.rows[0].id}', every prompt was dropped ({reasons})",
            where="prompts.train",
            hint="give other prompts, or change the filter that dropped them (prompts.min_chars, max_chars, "
            "near_duplicate, max_similarity)",
        )
    return rows


def _limited(rows: list[Row], limit: int | None, wanted: Prompts, dropped: Counter[str]) -> list[Row]:
    if limit is None:
        return rows
    order = in_order(rows, wanted.seed) if wanted.choose == "random" else range(len(rows))
    taken: Counter[str] = Counter()
    kept = set()
    for place in order:
        domain = rows[place].domain
        if taken[domain] < limit:
            taken[domain] += 1
            kept.add(place)
        else:
            dropped["above the limit of its domain"] += len(rows[place].samples)
    return [row for place, row in enumerate(rows) if place in kept]


def _prompts(row: Row, split: Split) -> list[Prompt]:
    """A row's samples as prompts. Evaluation answers are always the target's own, never a log's."""
    return [
        Prompt(
            id=sample.id,
            domain=row.domain,
            split=split,
            messages=row.before(sample),
            tools=row.tools,
            recorded=None if split == "evaluate" else sample.recorded,
        )
        for sample in row.samples
    ]


def _side(
    reading: Reading, dropped: Mapping[str, int], rows: Sequence[Row], prompts: Sequence[Prompt]
) -> SideCounts:
    return side_counts(
        rows=reading.total,
        bad=Counter(row.kind for row in reading.skipped),
        dropped={reason: count for reason, count in dropped.items() if count},
        unanswered=reading.unanswered,
        conversations=len(rows),
        prompts=prompts,
    )
