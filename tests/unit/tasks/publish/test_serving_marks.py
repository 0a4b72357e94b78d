"""What the terminal shows: colours, marks without them, and neither where nothing is certain."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tasks.measure.counters import SpecDelta
from tasks.publish.serving_ask import Answer
from tasks.publish.serving_marks import coloured, shown
from tasks.publish.serving_rounds import Streamed, rounds_of

COUNTED = SpecDelta(drafts=2, draft_tokens=8, accepted=3, per_position=(2, 1, 0, 0), generated=6)
ANSWER = Answer(
    pieces=("The", " cap", "ital", "\nis", " Pa", "ris"),
    streamed=Streamed(((1,), (2, 3, 4), (5, 6)), finish="length"),
    rounds=rounds_of(Streamed(((1,), (2, 3, 4), (5, 6))), COUNTED),
    seconds=2.0,
)


def test_marks_stand_around_accepted_tokens_only() -> None:
    first = shown(ANSWER, colours=False).split("\n\n")[0]
    assert first == "The⟨ cap⟩⟨ital⟩\nis⟨ Pa⟩ris".replace("⟩⟨", "")
    assert "6 tokens in 2.0 s; 2 rounds, 3 of 8 draft tokens accepted, tau 2.50" in shown(
        ANSWER, colours=False
    )


def test_each_round_has_another_colour_and_the_text_stays() -> None:
    text = shown(ANSWER, colours=True).split("\n\n")[0]
    assert re.findall(r"\033\[(\d+)m([^\033]+)\033\[0m", text) == [("36", " capital"), ("33", " Pa")]
    assert re.sub(r"\033\[\d+m", "", text) == "".join(ANSWER.pieces)


def test_a_colour_does_not_cross_the_end_of_a_line() -> None:
    across = replace(ANSWER, pieces=("a", "b\n", "\nc", "d", "e", "f"))
    assert "\033[36mb\033[0m\n\n\033[36mc\033[0m" in shown(across, colours=True)


@pytest.mark.parametrize(
    ("environment", "terminal", "wanted"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"TERM": "dumb"}, True, False),
    ],
)
def test_colours_are_for_terminals_that_want_them(
    environment: dict[str, str], terminal: bool, wanted: bool
) -> None:
    assert coloured(environment, terminal) is wanted


def test_a_terminal_without_the_marks_gets_plain_ones() -> None:
    text = shown(ANSWER, colours=False, encoding="ascii")
    assert text.startswith("The<< capital>>\nis<< Pa>>ris") and text.isascii()


def test_doubt_is_said_in_place_of_marks() -> None:
    foreign = replace(COUNTED, generated=90)
    doubtful = replace(ANSWER, rounds=rounds_of(ANSWER.streamed, foreign))
    text = shown(doubtful, colours=True)
    assert text.startswith("The capital\nis Paris") and "\033" not in text
    assert "accepted tokens are not shown: the server counted 90 generated tokens" in text
    assert "tau" in text, "the counters' own words stay"
