"""The plan of a growing log: a function of the order alone, and no deadlock with the writer."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tasks.stream.index import IndexEntry, TokenIds
from tasks.stream.retention import on_disk
from tasks.train.ordered import OrderedBatch, OrderedPlan


def entry(i: int, tokens: int = 20, size: int = 20_000, prompt: int = 5, split: Any = "train") -> IndexEntry:
    return IndexEntry(
        i=i,
        prompt_id=f"p{i}",
        domain="qa",
        split=split,
        tokens=tokens,
        prompt_tokens=prompt,
        answer_tokens=tokens - prompt + 1,
        answer_at=0,
        answer_xxh3="",
        finish_reason="stop",
        bytes=size,
        xxh3=f"{i:x}",
        ids=TokenIds(Path("unused")),
    )


def numbers(batches: list[OrderedBatch]) -> list[list[int]]:
    return [[one.i for one in batch.entries] for batch in batches]


def planned(
    entries: list[IndexEntry], window: int | None = None, cuts: tuple[int, ...] = (), close: bool = True
) -> OrderedPlan:
    plan = OrderedPlan(64, window, cuts)
    for one in entries:
        plan.add(one, 0)
    if close:
        plan.close()
    return plan


def test_batches_are_consecutive_and_bounded_by_tokens() -> None:
    lengths = [20, 30, 40, 10, 10, 90, 64, 1]
    batches = planned([entry(i, tokens=n, prompt=0) for i, n in enumerate(lengths)]).batches
    assert numbers(batches) == [[0, 1], [2, 3, 4], [5], [6], [7]]
    assert [batch.end for batch in batches] == [2, 5, 6, 7, 8]
    assert not any(batch.release for batch in batches)


def test_what_is_settled_does_not_change_when_more_samples_come() -> None:
    entries = [entry(i, tokens=7 + 5 * i % 30) for i in range(30)]
    whole = planned(entries, window=200_000)
    for seen in range(30):
        some = planned(entries[:seen], window=200_000, close=False).batches
        assert some == whole.batches[: len(some)]


def test_samples_without_a_token_to_learn_are_passed_but_not_trained() -> None:
    entries = [entry(0), entry(1, tokens=5, prompt=5), entry(2), entry(3, tokens=5, prompt=5)]
    plan = planned(entries)
    assert numbers(plan.batches) == [[0, 2]]
    assert plan.batches[-1].end == 4 and plan.cuts == [4]


def test_cut_is_made_again_from_what_a_checkpoint_remembers() -> None:
    entries = [entry(i, tokens=10) for i in range(8)]
    plan = planned(entries[:2], close=False)
    assert plan.cut() and not plan.cut()
    for one in entries[2:]:
        plan.add(one, 0)
    plan.close()
    assert numbers(plan.batches) == [[0, 1], [2, 3, 4, 5, 6, 7]]
    again = planned(entries, cuts=(2,))
    assert (again.batches, again.cuts) == (plan.batches, plan.cuts)


def test_samples_that_come_after_all_leave_earlier_batches_as_they_were() -> None:
    entries = [entry(i) for i in range(7)]
    ended = planned(entries[:4])
    longer = planned(entries, cuts=tuple(ended.cuts))
    assert numbers(longer.batches)[: len(ended.batches)] == numbers(ended.batches)
    assert longer.batches[len(ended.batches) - 1].digest == ended.batches[-1].digest


def test_digest_tells_other_samples_in_the_same_places() -> None:
    first = planned([entry(i) for i in range(4)]).batches[-1]
    other = planned([entry(i) for i in (0, 1, 2, 9)]).batches[-1]
    assert first.end == other.end and first.digest != other.digest


@pytest.mark.parametrize("seed", range(30))
def test_a_writer_in_a_small_window_is_never_held_up_for_ever(seed: int) -> None:
    """The writer fills the window, the trainer takes all it sees and releases by the plan's rule alone."""
    draw = random.Random(seed)
    window = draw.choice([100_000, 300_000, 1_000_000])
    plan = OrderedPlan(draw.choice([30, 64, 500]), window)
    train: list[int] = []
    kept = gone = 0
    for i in range(80):
        size = draw.randrange(1_000, window // 8)
        waiting = sum(on_disk(one) for one in train[gone:])
        assert kept + waiting + on_disk(size) <= window, f"sample {i} waits for ever"
        if draw.random() < 0.03:
            kept += on_disk(size)
            continue
        train.append(size)
        plan.add(entry(i, size=size, tokens=draw.randrange(6, 90)), kept)
        gone = max([batch.end for batch in plan.batches if batch.release], default=0)
    plan.close()
    assert sum(len(batch.entries) for batch in plan.batches) == len(train)
