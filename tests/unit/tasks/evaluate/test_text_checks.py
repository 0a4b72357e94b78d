"""Texts that decay are found, and what the target does to itself is allowed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tasks.evaluate.arm_record import Answer, ArmRecord
from tasks.evaluate.text_checks import TextCheck, exchange_p, text_checks

WORDS = tuple(range(100, 140))
LOOP = (*range(100, 108), *([7, 8] * 16))


def answer(name: str, tokens: tuple[int, ...], **parts: Any) -> Answer:
    return Answer(prompt_id=name, token_ids=tokens, finish_reason=parts.pop("finish", "length"), **parts)


def arm(*answers: Answer) -> ArmRecord:
    return ArmRecord(
        name="a",
        fingerprint="",
        argv=(),
        engine="e",
        answers={one.prompt_id: one for one in answers},
        domains={},
        speculates=True,
        seconds=1.0,
    )


def all_say(tokens: tuple[int, ...], count: int = 12, **parts: Any) -> list[Answer]:
    return [answer(f"p{n}", tokens, **parts) for n in range(count)]


def found(draft: ArmRecord, plain: ArmRecord, again: ArmRecord | None = None) -> dict[str, TextCheck]:
    checks = text_checks(plain, draft, again, 0)
    assert checks is not None
    return {one.what: one for one in checks.checks}


def test_equal_answers_never_differ() -> None:
    same = arm(*all_say(WORDS))
    assert [(one.p_value, one.differs) for one in found(same, same, same).values()] == [(1.0, False)] * 3


@pytest.mark.parametrize(
    ("tokens", "finish", "what"),
    [(LOOP, "length", "repetition"), ((2,), "stop", "emptiness"), ((), "stop", "emptiness"),
     (WORDS[:10], "stop", "length")],
)  # fmt: skip
def test_what_decays_with_the_draft_alone_is_found(tokens: tuple[int, ...], finish: str, what: str) -> None:
    plain = arm(*all_say(WORDS))
    checks = found(arm(*all_say(tokens, finish=finish)), plain, plain)
    assert checks[what].differs
    for other in {"repetition", "emptiness"} - {what}:
        assert not checks[other].differs


def test_what_the_target_does_to_itself_is_allowed() -> None:
    """Half of the target's second answers decay: so may half of the draft's."""
    half = arm(*all_say(LOOP, 6), *all_say(WORDS, 12)[6:])
    plain = arm(*all_say(WORDS))
    assert found(half, plain)["repetition"].p_value < 0.05
    assert not found(half, plain, half)["repetition"].differs


def test_a_draft_that_repeats_less_is_not_held() -> None:
    assert not found(arm(*all_say(WORDS)), arm(*all_say(LOOP)))["repetition"].differs


def test_failed_answers_and_answers_of_one_side_are_left_out() -> None:
    plain = arm(answer("a", WORDS), answer("b", (), error="timed out"), answer("c", WORDS))
    draft = arm(answer("a", WORDS), answer("b", WORDS), answer("d", WORDS))
    assert {one.prompts for one in found(draft, plain).values()} == {1}
    assert text_checks(plain, arm(answer("d", WORDS)), None, 0) is None


def test_a_good_draft_is_seldom_held() -> None:
    """Of 300 drafts that answer as the target does, at most 1 % and chance are said to differ."""
    rng = np.random.default_rng(1)
    lengths = rng.geometric(0.02, size=(300, 24, 3))
    held = sum(exchange_p(rows.tolist(), "either", 0) < 0.01 for rows in lengths)
    assert held <= 9


def test_lengths_that_drift_are_found() -> None:
    rng = np.random.default_rng(2)
    rows = rng.normal(200, 20, size=(36, 3))
    rows[:, 0] += 25
    assert exchange_p(rows.tolist(), "either", 0) < 0.01
