"""Rounds of an answer: found where the witnesses agree, and doubted where one of them does not."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.measure.counters import SpecDelta
from tasks.publish.serving_rounds import Round, Streamed, rounds_of

K = 4
ACCEPTED = st.lists(st.integers(0, K), min_size=1, max_size=12)


def answered(accepted: list[int], cut: int = 0) -> tuple[Streamed, SpecDelta]:
    """An answer of these rounds, of which the last lost its last `cut` tokens, and its counters."""
    sizes = [1, *(one + 1 for one in accepted)]
    sizes[-1] -= cut
    ids = iter(range(sum(sizes)))
    chunks = tuple(tuple(next(ids) for _ in range(size)) for size in sizes)
    return Streamed(chunks, finish="length"), SpecDelta(
        drafts=len(accepted),
        draft_tokens=K * len(accepted),
        accepted=sum(accepted),
        per_position=tuple(sum(one > place for one in accepted) for place in range(K)),
        generated=sum(sizes),
    )


@settings(deadline=None, max_examples=60)
@given(ACCEPTED, st.data())
def test_rounds_follow_from_the_stream_and_from_the_list(accepted: list[int], data: st.DataObject) -> None:
    """Also where the answer's limit cuts the last round."""
    cut = data.draw(st.integers(0, accepted[-1]))
    streamed, counted = answered(accepted, cut)
    by_chunks = rounds_of(streamed, counted)
    by_list = rounds_of(replace(streamed, listed=tuple(accepted)), counted)
    assert by_chunks.doubt == by_list.doubt == ""
    assert by_chunks.rounds == by_list.rounds
    assert [one.tokens for one in by_chunks.rounds] == [len(chunk) for chunk in streamed.chunks[1:]]
    whole = [one.accepted for one in by_chunks.rounds]
    assert whole[:-1] == accepted[:-1] and whole[-1] == min(accepted[-1], accepted[-1] + 1 - cut)
    assert by_chunks.tau == 1 + sum(accepted) / len(accepted)


@settings(deadline=None, max_examples=60)
@given(ACCEPTED.filter(lambda rounds: len(rounds) > 1), st.data())
def test_chunks_of_several_steps_are_no_rounds(accepted: list[int], data: st.DataObject) -> None:
    """A client that is late gets several steps in one piece; only the server's own list helps then."""
    streamed, counted = answered(accepted)
    at = data.draw(st.integers(0, len(streamed.chunks) - 2))
    joined = (*streamed.chunks[at], *streamed.chunks[at + 1])
    merged = replace(streamed, chunks=(*streamed.chunks[:at], joined, *streamed.chunks[at + 2 :]))
    assert "pieces are not rounds" in rounds_of(merged, counted).doubt
    found = rounds_of(replace(merged, listed=tuple(accepted)), counted)
    assert found.rounds == rounds_of(streamed, counted).rounds
    assert "chunks" not in found.agreed


def test_a_known_answer() -> None:
    streamed, counted = answered([2, 0, 3], cut=1)
    assert rounds_of(streamed, counted).rounds == (Round(1, 2, 3), Round(4, 0, 1), Round(5, 3, 3))


def test_every_disagreement_is_said_and_nothing_is_marked() -> None:
    streamed, counted = answered([2, 0, 3])
    doubts = {
        "answers others too": replace(counted, generated=counted.generated + 7),
        "pieces are not rounds": replace(counted, drafts=counted.drafts - 1),
        "restarted": replace(counted, invalid="the server was restarted"),
        "nothing was drafted": replace(counted, drafts=0, accepted=0, per_position=(0,) * K),
    }
    # The same sums, but other rounds than the pieces show.
    doubts["rounds with 5"] = replace(counted, per_position=(3, 1, 1, 0))
    for words, other in doubts.items():
        found = rounds_of(streamed, other)
        assert words in found.doubt and found.rounds == (), words
    lists = rounds_of(replace(streamed, listed=(2, 1, 2)), counted)
    assert "lists 3 rounds" in lists.doubt and lists.rounds == ()
    assert "no token ids" in rounds_of(Streamed(()), counted).doubt


def test_a_step_without_a_draft_cannot_be_placed_by_the_list() -> None:
    """N-gram decoding drafts in some steps only: the list leaves the others out."""
    streamed, counted = answered([2, 0, 3])
    shorter = replace(counted, drafts=2)
    assert rounds_of(replace(streamed, listed=(2, 3)), shorter).rounds == ()
