"""Optimizer steps of several packs: which packs belong to a step, and which rank computes each of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from tasks.train.checkpoint import Position
from tasks.train.data import Batch, Batches


@dataclass(frozen=True)
class Group:
    """What one optimizer step learns from.

    Args:
        packs: Its packs, in order.
        samples: Numbers of their samples in the log; None where the plan tells.
        release: A checkpoint must follow: samples wait to be deleted.
        measure: A held-out evaluation is due behind it.
        after: The position behind it, but for the step itself.
    """

    packs: tuple[Batch, ...]
    samples: tuple[int, ...] | None
    release: bool
    measure: bool
    after: Position

    @property
    def tokens(self) -> int:
        return sum(pack.tokens for pack in self.packs)


@dataclass(frozen=True)
class Share:
    """One pack of a rank's part of a step.

    Args:
        pack: Its number in the step.
        counts: False where the rank only keeps up with the others, with a pack that another one computes.
    """

    pack: int
    counts: bool


class _MustSave(Exception):
    """The next pack comes only after a checkpoint."""


def take_group(batches: Batches, place: Position, most: int) -> Group:
    """The packs of the next step: `most` of them, or fewer at the end of an epoch.

    A step also ends where samples wait for a checkpoint to be deleted. `place` itself is left alone, so
    that a stop while a pack is waited for loses none.
    """
    after = replace(place, cuts=list(place.cuts))
    packs: list[Batch] = []
    samples: list[int] | None = None
    release = measure = False
    while len(packs) < most and not release:
        over, release = _is_over(batches, after) if packs else (False, False)
        if over or release:
            break
        step = batches.take(after)
        batches.advance(after)
        after.packs += 1
        packs.append(step.batch)
        if step.samples is not None:
            samples = [*(samples or ()), *step.samples]
        release, measure = step.release, measure or step.measure
    return Group(tuple(packs), None if samples is None else tuple(samples), release, measure, after)


def _is_over(batches: Batches, place: Position) -> tuple[bool, bool]:
    """Whether the epoch is over, and whether the next pack comes only after a checkpoint."""
    try:
        return batches.is_over(place, _must_save), False
    except _MustSave:
        return False, True


def _must_save() -> NoReturn:
    raise _MustSave


def deal(tokens: Sequence[int], ranks: int) -> tuple[tuple[Share, ...], ...]:
    """Packs of each rank: as many on each, the largest first to whom has the fewest tokens.

    Args:
        tokens: Of each pack.

    Returns:
        For each rank its packs in rising order. Where the packs do not go round, a rank computes the
        smallest pack once more without counting it, since all ranks must take part in each exchange.
    """
    each = -(-len(tokens) // ranks)
    load, shares = [0] * ranks, [list[Share]() for _ in range(ranks)]
    for pack in sorted(range(len(tokens)), key=lambda pack: (-tokens[pack], pack)):
        free = [rank for rank in range(ranks) if len(shares[rank]) < each]
        rank = min(free, key=lambda rank: (load[rank], rank))
        load[rank] += tokens[pack]
        shares[rank].append(Share(pack, True))
    smallest = min(range(len(tokens)), key=lambda pack: (tokens[pack], pack))
    for own in shares:
        own.sort(key=lambda share: share.pack)
        own.extend([Share(smallest, False)] * (each - len(own)))
    return tuple(tuple(own) for own in shares)


def pack_seed(seed: int, step: int, pack: int) -> int:
    """Seed of all that is random in one pack of one step, whichever rank computes it."""
    digest = hashlib.sha256(f"{seed}/{step}/{pack}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
