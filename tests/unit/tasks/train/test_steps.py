"""Packs of a step: dealt out evenly, seeded alike on every rank, and cut where a checkpoint must come."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tasks.train.checkpoint import Position
from tasks.train.data import Batch, Save, Step
from tasks.train.steps import Share, deal, pack_seed, take_group


@given(st.lists(st.integers(1, 500), min_size=1, max_size=24), st.integers(1, 8))
def test_each_pack_is_counted_once_and_each_rank_gets_as_many(tokens: list[int], ranks: int) -> None:
    shares = deal(tokens, ranks)
    assert len(shares) == ranks and len({len(own) for own in shares}) == 1
    counted = [share.pack for own in shares for share in own if share.counts]
    assert sorted(counted) == list(range(len(tokens)))


def test_tokens_are_balanced() -> None:
    shares = deal([10, 90, 20, 80, 30, 70], 2)
    loads = [sum([10, 90, 20, 80, 30, 70][share.pack] for share in own) for own in shares]
    assert loads == [140, 160] and {len(own) for own in shares} == {3}
    assert deal([5], 2) == ((Share(0, True),), (Share(0, False),))


def test_seeds_differ_by_seed_step_and_pack() -> None:
    seeds = {pack_seed(seed, step, pack) for seed in range(3) for step in range(20) for pack in range(4)}
    assert len(seeds) == 240 and all(0 <= seed < 2**63 for seed in seeds)
    assert pack_seed(0, 1, 2) == pack_seed(0, 1, 2)


class Batches:
    """`count` packs of one sample; some need a checkpoint behind them, or before they come."""

    def __init__(self, count: int, release: frozenset[int] = frozenset(), after_save: int = -1):
        self.count, self.release, self.after_save = count, release, after_save

    def is_over(self, place: Position, save: Save | None) -> bool:
        if place.step_in_epoch == self.after_save and save is not None:
            save()
        return place.step_in_epoch == self.count

    def take(self, place: Position) -> Step:
        values = {field.name: torch.zeros(3) for field in dataclasses.fields(Batch)}
        number = place.step_in_epoch
        return Step(Batch(**values), (number,), number in self.release, number == 4)

    def advance(self, place: Position) -> None:
        place.step_in_epoch += 1


@pytest.mark.parametrize(
    ("batches", "samples", "release"),
    [
        (Batches(9), (3, 4, 5), False),
        (Batches(5), (3, 4), False),
        (Batches(9, release=frozenset({4})), (3, 4), True),
        (Batches(9, after_save=5), (3, 4), True),
    ],
    ids=["full", "end of the epoch", "release", "next pack waits for a checkpoint"],
)
def test_group_ends_where_it_must(batches: Any, samples: tuple[int, ...], release: bool) -> None:
    place = Position("x", step=1, packs=3, step_in_epoch=3)
    group = take_group(batches, place, 3)
    assert (group.samples, group.release, group.measure) == (samples, release, True)
    assert group.tokens == 3 * len(samples)
    assert (group.after.step_in_epoch, group.after.packs) == (3 + len(samples), 3 + len(samples))
    assert place == Position("x", step=1, packs=3, step_in_epoch=3), "a stop on the way must lose no pack"
