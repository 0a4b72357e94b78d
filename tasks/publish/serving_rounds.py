"""Which tokens of an answer were drafted and accepted, round by round, and whether that is certain.

vLLM does not mark them. There are three witnesses. A chunk of the stream carries the tokens of one step of
the engine as long as the client keeps up. The counters say how many rounds there were, and how many of them
accepted their first, second, ... draft token. A server that reports acceptance by request lists the rounds
itself. Rounds are shown only where the counters confirm the list, or without one the chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.measure.acceptance import tau
from tasks.measure.counters import SpecDelta


@dataclass(frozen=True)
class Streamed:
    """An answer as it arrived."""

    chunks: tuple[tuple[int, ...], ...]
    """Token ids of each chunk that carried some."""
    listed: tuple[int, ...] | None = None
    """Accepted draft tokens of each round, as the response lists them; None where it does not."""
    finish: str = ""
    """Why the answer ended: `stop`, `length`."""
    content: str = ""
    """Text of the answer, as the server gives it."""

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(token for chunk in self.chunks for token in chunk)


@dataclass(frozen=True)
class Round:
    """One verification round: where its tokens stand in the answer."""

    first: int
    """Place of its first token."""
    accepted: int
    """Draft tokens of it that are in the answer."""
    tokens: int
    """Tokens of it that are in the answer, the target's own one included."""


@dataclass(frozen=True)
class Rounds:
    """The rounds of an answer, or why they are not known."""

    counted: SpecDelta
    rounds: tuple[Round, ...] = ()
    agreed: str = ""
    """Which witnesses agree."""
    doubt: str = ""
    """Why no token can be said to be drafted; empty where they can."""

    @property
    def tau(self) -> float | None:
        """Tokens per verification round by the counters, bonus included; None if nothing was drafted."""
        return tau(self.counted.drafts, self.counted.accepted)


def rounds_of(streamed: Streamed, counted: SpecDelta) -> Rounds:
    """Place the rounds in the answer, if the witnesses agree.

    Args:
        counted: Differences of the server's counters around this one request.
    """
    if doubt := _not_ours(streamed, counted):
        return Rounds(counted, doubt=doubt)
    listed = streamed.listed
    by_chunks = [len(chunk) - 1 for chunk in streamed.chunks[1:]]
    by_list = listed is not None and _fits(listed, streamed, counted)
    if by_list and listed is not None:
        agreeing = ", the stream's chunks" if _seen(listed, streamed) == by_chunks else ""
        return Rounds(counted, _placed(listed, streamed), f"the response's list{agreeing} and the counters")
    if listed is not None:
        return Rounds(
            counted,
            doubt=f"the response lists {len(listed)} rounds with {sum(listed)} accepted tokens, and its "
            f"{len(streamed.tokens)} tokens or the counters do not fit that",
        )
    whole = _completed(by_chunks, counted)
    if len(streamed.chunks[0]) == 1 and whole is not None and _fits(whole, streamed, counted):
        return Rounds(counted, _placed(whole, streamed), "the stream's chunks and the counters")
    return Rounds(
        counted,
        doubt=f"the answer came in {len(streamed.chunks)} pieces, and the counters tell of "
        f"{counted.drafts} rounds with {counted.accepted} accepted tokens: pieces are not rounds here",
    )


def _not_ours(streamed: Streamed, counted: SpecDelta) -> str:
    """Why the counters say nothing about this answer; empty if they do."""
    tokens = len(streamed.tokens)
    if not streamed.chunks:
        return "the server sends no token ids with its stream"
    if counted.invalid:
        return counted.invalid
    if counted.generated != tokens:
        return (
            f"the server counted {counted.generated} generated tokens and this answer has {tokens}: "
            "it answers others too, or counts late"
        )
    return "" if counted.drafts else "nothing was drafted"


def _completed(by_chunks: Sequence[int], counted: SpecDelta) -> list[int] | None:
    """Accepted tokens of each round; the last one may have had more than the answer's end let through."""
    missing = counted.accepted - sum(by_chunks)
    if not by_chunks or missing < 0:
        return None
    return [*by_chunks[:-1], by_chunks[-1] + missing]


def _fits(accepted: Sequence[int], streamed: Streamed, counted: SpecDelta) -> bool:
    """Whether rounds with so many accepted tokens give this answer and these counters."""
    positions = [sum(one > place for one in accepted) for place in range(len(counted.per_position))]
    beyond = 1 + sum(one + 1 for one in accepted) - len(streamed.tokens)
    return (
        len(accepted) == counted.drafts
        and sum(accepted) == counted.accepted
        and positions == list(counted.per_position)
        and bool(accepted)
        and 0 <= beyond <= accepted[-1]
    )


def _seen(accepted: Sequence[int], streamed: Streamed) -> list[int]:
    """Tokens of each round behind its first, as far as they are in the answer."""
    return [one.tokens - 1 for one in _placed(accepted, streamed)]


def _placed(accepted: Sequence[int], streamed: Streamed) -> tuple[Round, ...]:
    """The rounds behind the first token, which comes from the prefill."""
    placed, first, tokens = [], 1, len(streamed.tokens)
    for one in accepted:
        here = min(one + 1, tokens - first)
        placed.append(Round(first, min(one, here), here))
        first += here
    return tuple(placed)
