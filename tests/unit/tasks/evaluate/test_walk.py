"""The walk over known answers: hand-made cases, then properties."""

from hypothesis import given
from hypothesis import strategies as st

from tasks.evaluate.walk import accepted_prefix, walk
from tasks.measure.acceptance import tau

WRONG = -1


def test_the_accepted_prefix_ends_at_the_first_difference() -> None:
    assert accepted_prefix([1, 2, 3], [1, 2, 3]) == 3
    assert accepted_prefix([1, 9, 3], [1, 2, 3]) == 1
    assert accepted_prefix([1, 2, 3], [1]) == 1
    assert accepted_prefix([1], []) == 0


def test_a_draft_that_is_always_wrong_takes_one_round_a_token() -> None:
    done = walk([[WRONG, WRONG]] * 5, [10, 11, 12, 13, 14, 15])
    assert (done.counts.rounds, done.counts.accepted) == (5, 0)
    assert done.counts.per_position == (0, 0)
    assert done.jumps == (1, 1, 1, 1, 1)


def test_a_hand_made_answer() -> None:
    answer = [10, 11, 12, 13, 14, 15]
    drafted = [[11, 12], [WRONG, WRONG], [WRONG, WRONG], [14, WRONG], [WRONG, WRONG]]
    done = walk(drafted, answer)
    # Anchor 10: 11 and 12 accepted, 13 is the bonus. Anchor 13: 14 accepted, 15 is the bonus.
    assert (done.counts.rounds, done.counts.accepted, done.counts.per_position) == (2, 3, (2, 1))
    assert done.jumps == (3, 2)


def test_the_last_round_counts_known_matches_beyond_the_cut() -> None:
    answer = [10, 11, 12, 13, 14, 15, 16, 17]
    perfect = [answer[i + 1 : i + 4] for i in range(7)]
    done = walk(perfect, answer, 3)
    # vLLM counts accepted tokens before it cuts at max_tokens.
    assert (done.counts.rounds, done.counts.accepted) == (1, 3)
    assert done.jumps == (2,)


def test_an_answer_of_one_token_has_no_round() -> None:
    done = walk([], [10])
    assert (done.counts.rounds, done.counts.accepted, done.counts.per_position) == (0, 0, ())
    assert done.jumps == ()
    assert walk([[1]], [10, 11], 1).counts.rounds == 0


def test_an_empty_answer_has_no_round() -> None:
    assert walk([], []).counts.rounds == 0


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[list[int]], list[int], int]:
    """Drafts that are right with some chance, over a small vocabulary."""
    answer = draw(st.lists(st.integers(0, 3), min_size=1, max_size=40))
    block = draw(st.integers(1, 9))
    rows = st.lists(st.integers(0, 3), min_size=block, max_size=block)
    drafted = draw(st.lists(rows, min_size=len(answer) - 1, max_size=len(answer) - 1))
    return drafted, answer, draw(st.integers(1, 45))


@given(cases())
def test_jumps_make_the_answer_and_tau_stays_in_bounds(case: tuple[list[list[int]], list[int], int]) -> None:
    drafted, answer, length = case
    done = walk(drafted, answer, length)
    assert 1 + sum(done.jumps) == min(len(answer), length)
    assert len(done.jumps) == done.counts.rounds
    assert sum(done.counts.per_position) == done.counts.accepted
    assert list(done.counts.per_position) == sorted(done.counts.per_position, reverse=True)
    value = tau(done.counts.rounds, done.counts.accepted)
    assert value is None or 1 <= value <= len(drafted[0]) + 1


@given(cases())
def test_a_perfect_draft_takes_the_fewest_rounds(case: tuple[list[list[int]], list[int], int]) -> None:
    _, answer, length = case
    block = 4
    perfect = [(answer[i + 1 :] + [WRONG] * block)[:block] for i in range(len(answer) - 1)]
    end = min(length, len(answer))
    assert walk(perfect, answer, length).counts.rounds == -(-(end - 1) // (block + 1))
