"""Train and held-out split by a hash of the conversation, with what is alike on one side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from tasks.errors import RetrainError, UsageError
from tasks.prompts.conversation import conversation_hash, opening_key, opening_text
from tasks.prompts.prompt import text_of
from tasks.prompts.rows import Row
from tasks.prompts.similarity import Grams, Index, clusters, grams

MIN_HELD_OUT = 4
"""Held-out conversations that a run needs at least: fewer cannot tell one training step from another."""


def held_out_rows(
    rows: Sequence[Row], share: float, max_similarity: float, seed: int
) -> tuple[set[str], int]:
    """Ids of the rows that are kept from training.

    A group is what shares its opening, or is connected by openings or whole prompts more alike than
    `max_similarity`. It is held out if the lowest hash of its conversations falls below `share`.

    Returns:
        The ids, and the pairs across the split that are more alike than `max_similarity`: 0.

    Raises:
        UsageError: Too few groups to hold some out.
    """
    sets, owners = _sets(rows)
    groups = _groups(rows, sets, owners, max_similarity)
    hashes = [min(conversation_hash(rows[place].messages, seed) for place in group) for group in groups]
    chosen = _chosen(hashes, len(rows), share)
    places = {
        place for group, value in zip(groups, hashes, strict=True) if value in chosen for place in group
    }
    leaks = _leaks(sets, owners, places, max_similarity)
    if leaks:
        raise RetrainError(
            f"{leaks} pairs of held-out and training prompts are more alike than {max_similarity:g}",
            where="prompts.held_out",
            hint="this is a fault of the program: please report it",
        )
    return {rows[place].id for place in places}, leaks


def _sets(rows: Sequence[Row]) -> tuple[list[Grams], list[int]]:
    """Grams of each row's longest prompt, and of its opening where that is another; and whose they are."""
    sets, owners = [], []
    for place, row in enumerate(rows):
        whole, opening = text_of(row.messages), opening_text(row)
        for text in dict.fromkeys((whole, opening)):
            sets.append(grams(text))
            owners.append(place)
    return sets, owners


def _groups(
    rows: Sequence[Row], sets: Sequence[Grams], owners: Sequence[int], max_similarity: float
) -> list[list[int]]:
    first: dict[int | bytes, int] = {}
    linked = []
    for number, owner in enumerate(owners):
        for key in (owner, opening_key(rows[owner])):
            linked.append((number, first.setdefault(key, number)))
    groups: dict[int, dict[int, None]] = defaultdict(dict)
    for owner, group in zip(owners, clusters(sets, max_similarity, linked), strict=True):
        groups[group][owner] = None
    return [list(group) for group in groups.values()]


def _chosen(hashes: Sequence[str], rows: int, share: float) -> set[str]:
    """Hashes below the bound that `share` sets, or the lowest few of a small set."""
    distinct = sorted(set(hashes))
    if share <= 0 or len(distinct) < 2 * MIN_HELD_OUT:
        alike = "" if len(distinct) == rows else f" in {len(distinct)} groups of similar ones"
        raise UsageError(
            f"prompts.held_out {share:g} of {rows} training conversations{alike} leaves too few to judge "
            f"training by; at least {MIN_HELD_OUT} are held out, and as many must remain",
            where="prompts.held_out",
            hint="give more, or more different, training prompts (prompts.train_per_domain), or raise "
            "prompts.held_out",
        )
    bound = f"{int(share * 2**64):016x}"
    return {value for value in distinct if value[:16] < bound} | set(distinct[:MIN_HELD_OUT])


def _leaks(sets: Sequence[Grams], owners: Sequence[int], held: set[int], above: float) -> int:
    """Counted pair by pair, not by what made the groups."""
    index = Index([own for own, owner in zip(sets, owners, strict=True) if owner in held])
    training = (own for own, owner in zip(sets, owners, strict=True) if owner not in held)
    return sum(len(index.alike(own, above)) for own in training)
