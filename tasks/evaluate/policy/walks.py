"""Walks over the answers of a replay under any number of verified draft tokens.

A round at an anchor verifies the first n draft tokens, accepts the prefix that is right, and jumps past it
and the bonus token to the next anchor. With every anchor in the file this is exact for any n, not only for K.

Letters: A anchors, K positions, P prompts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tasks.evaluate.policy.slots import Bools, Floats, Ints, Slots


@dataclass(frozen=True)
class Walks:
    """Where every anchor leads."""

    rows: Ints
    """`[A]`, row of the slots file of each anchor: anchors are ordered by prompt and place here."""
    accepted: Ints
    """`[A]`, draft tokens that are accepted if all K are verified."""
    next_row: Ints
    """`[A, K + 1]`, anchor after 0 ... K accepted tokens; -1 at the answer's end."""
    first_row: Ints
    """`[P]`, first anchor of each prompt that has one."""
    prompt: Ints
    """`[A]`, index of the anchor's prompt among the P."""
    starts: Ints
    """Anchors at which a round may start: those of the walk with all K tokens."""
    positions: int

    @property
    def prompts(self) -> int:
        """P."""
        return len(self.first_row)


@dataclass(frozen=True)
class Played:
    """What rounds took, by prompt: arrays `[P]`."""

    rounds: Floats
    accepted: Floats
    verified: Floats
    """Draft tokens verified."""
    seconds: Floats
    """Time in which the prompt's request was decoded; 0 where nothing is known of time."""

    @property
    def tokens(self) -> Floats:
        """Tokens emitted, bonus included."""
        return self.rounds + self.accepted


def walks_of(slots: Slots, prompts: Bools | None = None) -> Walks:
    """Order the anchors and find each one's successors.

    Args:
        prompts: `[rows of the replay's file]`, which prompts take part; None for all.
    """
    rows = np.arange(len(slots.prompt)) if prompts is None else np.flatnonzero(prompts[slots.prompt])
    rows = rows[np.lexsort((slots.anchor[rows], slots.prompt[rows]))]
    prompt, anchor = slots.prompt[rows], slots.anchor[rows]
    _, first, index = np.unique(prompt, return_index=True, return_inverse=True)
    span = int(anchor.max(initial=0)) + slots.positions + 2
    keys = index * span + anchor
    ahead = np.arange(1, slots.positions + 2)
    found = np.searchsorted(keys, keys[:, None] + ahead)
    inside = found < len(keys)
    same = inside & (index[np.minimum(found, len(keys) - 1)] == index[:, None]) if len(keys) else inside
    begun = np.flatnonzero(slots.round[rows])
    return Walks(
        rows=rows,
        accepted=slots.prefix_right[rows].sum(axis=1),
        next_row=np.where(same, found, -1),
        first_row=first.astype(np.int64),
        prompt=index.astype(np.int64),
        starts=begun if len(begun) else np.arange(len(rows)),
        positions=slots.positions,
    )


def walk_fixed(walks: Walks, tokens: int) -> Played:
    """Walk every answer from its first anchor to its end with `tokens` draft tokens in every round."""
    rounds, accepted = np.zeros(walks.prompts), np.zeros(walks.prompts)
    here, prompt = walks.first_row.copy(), np.arange(walks.prompts)
    while len(here):
        won = np.minimum(walks.accepted[here], tokens)
        rounds[prompt] += 1
        accepted[prompt] += won
        following = walks.next_row[here, won]
        going = following >= 0
        here, prompt = following[going], prompt[going]
    return Played(rounds, accepted, rounds * tokens, np.zeros(walks.prompts))
