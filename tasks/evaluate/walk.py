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
    anchors: tuple[int, ...] = ()
    """Answer token that each round started from."""
    accepted: tuple[int, ...] = ()
    """Draft tokens accepted in each round."""


def accepted_prefix(drafted: Sequence[int], following: Sequence[int]) -> int:
    """Length of the longest prefix of `drafted` that equals `following`."""
    count = 0
    for guess, truth in zip(drafted, following, strict=False):
        if guess != truth:
            break
        count += 1
    return count


def walk(
    drafted: Sequence[Sequence[int]],
    answer: Sequence[int],
    length: int | None = None,
    tokens: int | None = None,
) -> Walk:
    """Count the rounds that verifying `answer` takes.

    Args:
        drafted: Row j is the block drafted with answer token j as the anchor: K tokens for the answer's
            positions j+1 ... j+K. Rows up to the last but one token are used.
        answer: All known answer tokens of the target.
        length: Emit only so many (a live run with a smaller `max_tokens`); the tokens beyond are known
            and still count as accepted in the last round, as in vLLM.
        tokens: Verify only the first so many of a block; None takes all K.
    """
    end = len(answer) if length is None else min(length, len(answer))
    whole = len(drafted[0]) if len(drafted) else 0
    block = whole if tokens is None else min(tokens, whole)
    per_position = [0] * block
    jumps: list[int] = []
    anchors: list[int] = []
    matched: list[int] = []
    anchor = 0
    while anchor + 1 < end:
        count = accepted_prefix(drafted[anchor][:block], answer[anchor + 1 : anchor + 1 + block])
        anchors.append(anchor)
        matched.append(count)
        for position in range(count):
            per_position[position] += 1
        jumps.append(min(count + 1, end - 1 - anchor))
        anchor += count + 1
    counts = PromptCounts(len(anchors), sum(matched), tuple(per_position) if anchors else ())
    return Walk(counts, tuple(jumps), tuple(anchors), tuple(matched))
