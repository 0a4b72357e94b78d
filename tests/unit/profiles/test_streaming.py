"""How the profile says what is captured."""

from __future__ import annotations

import pytest

from profiles.load import ProfileProblem, load_profile
from profiles.store import Store
from profiles.streaming import Stream, in_flight_bytes

GIB = 2**30


def test_bytes_in_flight_follow_from_the_segment() -> None:
    store = Store(segment_bytes=10 * GIB)
    assert in_flight_bytes(Stream(), store) == 9 * GIB
    assert in_flight_bytes(Stream(in_flight_bytes=GIB), store) == GIB


def test_more_than_the_segment_holds_is_refused() -> None:
    over = {"store": {"segment_bytes": GIB}, "stream": {"in_flight_bytes": GIB}}
    with pytest.raises(ProfileProblem, match=r"does not fit into 90 % of store\.segment_bytes"):
        load_profile("laptop", over)


def test_old_name_of_answers_still_works() -> None:
    assert load_profile("laptop", {"stream": {"mode": "generate"}}).profile.stream.answers == "generate"
    with pytest.raises(ProfileProblem, match="old name"):
        load_profile("laptop", {"stream": {"mode": "generate", "answers": "recorded"}})


def test_served_needs_to_know_who_answers() -> None:
    with pytest.raises(ValueError, match="answer_url"):
        Stream(answers="served")
    with pytest.raises(ValueError, match=r"belong to stream\.answers served"):
        Stream(answers="recorded", answer_url="http://127.0.0.1:1")


def test_a_reader_that_leaves_the_writer_no_time_is_refused() -> None:
    with pytest.raises(ProfileProblem, match=r"stream.read_timeout_s is 6: .* raise it to 6.1 or more"):
        load_profile("laptop", {"stream": {"read_timeout_s": 6}})
    attached = {"kind": "attach", "url": "http://127.0.0.1:1"}
    theirs = {"serve": attached, "store": {"master": "127.0.0.1:2"}, "stream": {"read_timeout_s": 6}}
    assert load_profile("laptop", theirs).profile.stream.read_timeout_s == 6, "its writer is not ours"
