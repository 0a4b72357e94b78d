"""The lossless verdict: first differences, ties, violations, the noise of the target itself."""

from __future__ import annotations

import pytest

from tasks.evaluate.live import Answer
from tasks.evaluate.verdict import Noise, compare, degenerated, judge, newly_degenerated, verdict
from tasks.evaluate.verdict_ties import Ruling, question, questions

PLAIN = Answer(prompt_id="a", token_ids=(5, 6, 7, 8))


def other(*tokens: int) -> Answer:
    return Answer(prompt_id="a", token_ids=tokens)


def test_the_question_is_about_the_first_difference_and_what_both_have_before_it() -> None:
    asked = question(PLAIN, other(5, 6, 9, 1))
    assert asked is not None
    assert (asked.position, asked.prefix, asked.plain_token, asked.other_token) == (2, (5, 6), 7, 9)
    assert question(PLAIN, PLAIN) is None


def test_each_difference_is_asked_about_once_and_failed_answers_never() -> None:
    failed = Answer(prompt_id="a", error="HTTP 500")
    arms = [{"a": other(5, 9)}, {"a": other(5, 9, 1)}, {"a": failed}, {"b": other(1)}]
    assert [one.other_token for one in questions({"a": PLAIN}, arms)] == [9]


@pytest.mark.parametrize(
    ("dtype", "apart", "tie"),
    [
        ("bfloat16", 0.0, True),
        ("bfloat16", 0.125, True),
        ("bfloat16", 0.25, False),
        ("float16", 0.015625, True),
        ("float16", 0.03125, False),
        ("float32", 0.0, True),
        ("float32", 0.0001, False),
        ("bfloat16", -0.25, False),
    ],
)
def test_one_step_of_the_logits_type_is_a_tie(dtype: str, apart: float, tie: bool) -> None:
    asked = question(PLAIN, other(5, 9))
    assert asked is not None
    rulings = {asked.key: Ruling(plain_logprob=-0.5, other_logprob=-0.5 - apart)}
    found = compare(1, PLAIN, other(5, 9), dtype, rulings)
    assert found.tie is tie and not found.equal


def test_more_steps_are_allowed_where_the_profile_says_so() -> None:
    asked = question(PLAIN, other(5, 9))
    assert asked is not None
    rulings = {asked.key: Ruling(plain_logprob=-0.5, other_logprob=-0.75)}
    assert compare(1, PLAIN, other(5, 9), "bfloat16", rulings, steps=2).tie


def test_what_the_target_cannot_say_is_not_a_tie() -> None:
    asked = question(PLAIN, other(5, 9))
    assert asked is not None
    found = compare(1, PLAIN, other(5, 9), "bfloat16", {asked.key: Ruling(error="HTTP 500")})
    assert found.tie is None and judge([found]) == "different"


def test_an_answer_that_breaks_off_is_a_violation() -> None:
    found = compare(7, PLAIN, other(5, 6), "bfloat16", {})
    assert (found.tie, found.first_difference, found.plain_token, found.arm_token) == (False, 2, 7, None)
    assert found.prompt_number == 7


def comparisons(equal: int, ties: int, wrong: int) -> list[object]:
    asked = question(PLAIN, other(9))
    assert asked is not None
    tied, not_tied = ({asked.key: Ruling(plain_logprob=-1.0, other_logprob=value)} for value in (-1.0, -9.0))
    return [
        *[compare(1, PLAIN, PLAIN, "float32", {})] * equal,
        *[compare(1, PLAIN, other(9), "float32", tied)] * ties,
        *[compare(1, PLAIN, other(9), "float32", not_tied)] * wrong,
    ]


@pytest.mark.parametrize(
    ("counts", "noise", "said"),
    [
        ((10, 0, 0), Noise(), "identical"),
        ((9, 1, 0), Noise(), "within_noise"),
        ((9, 0, 1), Noise(), "different"),
        ((9, 0, 1), Noise(10, 1), "within_noise"),
        ((8, 0, 2), Noise(10, 1), "different"),
        ((19, 0, 1), Noise(10, 1), "within_noise"),
        ((0, 0, 0), Noise(), "different"),
    ],
)
def test_violations_beyond_the_targets_own_rate_are_different(
    counts: tuple[int, int, int], noise: Noise, said: str
) -> None:
    assert judge(comparisons(*counts), noise) == said  # type: ignore[arg-type]


def test_an_answer_that_decays_is_different_whatever_else_holds() -> None:
    words, loop = tuple(range(60)), (*range(20), *(5, 6) * 20)
    plain, decayed = {"a": other(*words)}, {"a": other(*loop)}
    assert degenerated(loop) and not degenerated(words)
    assert newly_degenerated(plain, decayed) == ["a"]
    found = verdict(plain, decayed, [], Noise(10, 9))
    assert found.lossless == "different" and found.decayed == ("a",)
    assert newly_degenerated(decayed, decayed) == []
