"""The walk: verification rounds over an answer that is already known.

It repeats what vLLM does at temperature 0, so that its counts and the live counters mean the same:

* The first answer token comes from the prefill and belongs to no round.
* A round starts at the last emitted token (the anchor). Its block was drafted from the hidden states
  strictly before the anchor. The longest prefix that equals the answer is accepted, and one more token
  of the target (the bonus) is emitted with it. The bonus is the next anchor.
* vLLM counts accepted tokens before it cuts the answer at its end token or at `max_tokens`. So the last
  round counts every match that is known, also beyond the cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.measure.acceptance import PromptCounts


@dataclass(frozen=True)
class Walk:
    """Rounds over one answer."""

    counts: PromptCounts
    jumps: tuple[int, ...]
    """Tokens emitted in each round, cut at the answer's end; with the prefill's token: the answer."""


def accepted_prefix(drafted: Sequence[int], following: Sequence[int]) -> int:
    """Length of the longest prefix of `drafted` that equals `following`."""
    count = 0
    for guess, truth in zip(drafted, following, strict=False):
        if guess != truth:
            break
        count += 1
    return count


def walk(drafted: Sequence[Sequence[int]], answer: Sequence[int], length: int | None = None) -> Walk:
    """Count the rounds that verifying `answer` takes.

    Args:
        drafted: Row j is the block drafted with answer token j as the anchor: K tokens for the answer's
            positions j+1 ... j+K. Rows up to the last but one token are used.
        answer: All known answer tokens of the target.
        length: Emit only so many (a live run with a smaller `max_tokens`); the tokens beyond are known
            and still count as accepted in the last round, as in vLLM.
    """
    end = len(answer) if length is None else min(length, len(answer))
    block = len(drafted[0]) if len(drafted) else 0
    per_position = [0] * block
    jumps: list[int] = []
    rounds = accepted = anchor = 0
    while anchor + 1 < end:
        count = accepted_prefix(drafted[anchor], answer[anchor + 1 :])
        rounds += 1
        accepted += count
        for position in range(count):
            per_position[position] += 1
        jumps.append(min(count + 1, end - 1 - anchor))
        anchor += count + 1
    return Walk(
        PromptCounts(rounds, accepted, tuple(per_position) if rounds else ()),
        tuple(jumps),
    )
