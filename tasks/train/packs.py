"""Which rank trains on which packs of an optimizer step: the same packs in all, whatever the ranks are."""

from __future__ import annotations

from collections.abc import Sequence


def packs_of_rank(packs: Sequence[int], rank: int, ranks: int) -> tuple[int, ...]:
    """Numbers of the packs of one optimizer step that `rank` takes, rising.

    Over all ranks each pack is taken once. Their numbers of packs differ by one at most (a collective
    operation waits for the rank with the most), and the largest packs go to the rank with the fewest tokens
    so far. It depends on the arguments only.

    Args:
        packs: Tokens of each pack of the step, in its order.

    Raises:
        ValueError: There is no such rank.
    """
    if not 0 <= rank < ranks:
        raise ValueError(f"rank {rank} of {ranks}")
    taken: list[list[int]] = [[] for _ in range(ranks)]
    tokens = [0] * ranks
    fewest, more = divmod(len(packs), ranks)
    for pack in sorted(range(len(packs)), key=lambda number: (-packs[number], number)):
        # Ranks that take one pack more than the fewest are as many as the division leaves over.
        full = sum(len(own) > fewest for own in taken)
        room = [r for r in range(ranks) if len(taken[r]) < fewest + (full < more)]
        chosen = min(room, key=lambda r: (tokens[r], r))
        taken[chosen].append(pack)
        tokens[chosen] += packs[pack]
    return tuple(sorted(taken[rank]))
