"""Choice of the draft's vocabulary."""

from __future__ import annotations

from collections import Counter

from tasks.train.vocabulary import choose_vocabulary


def test_most_frequent_tokens_win_and_ties_go_to_the_smaller_id() -> None:
    chosen = choose_vocabulary(Counter({9: 5, 4: 1, 7: 1, 2: 3}), 3, 10)
    assert chosen.target_ids().tolist() == [2, 4, 9]
    assert chosen.t2d is not None and chosen.t2d.nonzero().squeeze(1).tolist() == [2, 4, 9]
    assert chosen.note == ""


def test_wish_beyond_the_tokens_seen_is_lowered_with_a_note() -> None:
    chosen = choose_vocabulary(Counter({3: 2, 8: 1}), 5, 10)
    assert chosen.size == 2
    assert "5 was lowered to 2" in chosen.note


def test_whole_vocabulary_needs_no_maps() -> None:
    for wanted in (None, 10, 11):
        chosen = choose_vocabulary(Counter({3: 2}), wanted, 10)
        assert (chosen.size, chosen.t2d, chosen.d2t) == (10, None, None)
