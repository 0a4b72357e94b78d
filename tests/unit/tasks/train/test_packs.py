"""Packs of a step dealt to ranks: each once, even in number, even in tokens."""

from __future__ import annotations

import random

import pytest

from tasks.train.packs import packs_of_rank

SIZES = [random.Random(n).choices(range(1, 8193), k=n % 23) for n in range(60)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("packs", SIZES, ids=lambda packs: f"{len(packs)} packs")
def test_each_pack_goes_to_one_rank_and_ranks_are_even(packs: list[int], ranks: int) -> None:
    dealt = [packs_of_rank(packs, rank, ranks) for rank in range(ranks)]
    assert sorted(pack for own in dealt for pack in own) == list(range(len(packs)))
    assert all(list(own) == sorted(own) for own in dealt)
    numbers = [len(own) for own in dealt]
    assert max(numbers) - min(numbers) <= 1
    if len(packs) % ranks == 0 and packs:
        # With equal numbers the heaviest rank is above the lightest by one pack at most.
        loads = [sum(packs[pack] for pack in own) for own in dealt]
        assert max(loads) - min(loads) <= max(packs)


def test_large_packs_are_paired_with_small_ones() -> None:
    assert [packs_of_rank([100, 90, 20, 10], rank, 2) for rank in (0, 1)] == [(0, 3), (1, 2)]


def test_a_rank_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="rank 2 of 2"):
        packs_of_rank([1], 2, 2)
