"""A prompt goes to the capture client as JSON and comes back as it was."""

from __future__ import annotations

import json

import pytest

from tasks.prompts.prompt import Message, Prompt, RecordedAnswer, ToolCall, prompt_of_record

CALL = ToolCall("weather", '{"city": "Oslo"}', "c1")
MESSAGES = (
    Message("system", "be kind"),
    Message("user", "is it cold"),
    Message("assistant", "", "let me look", (CALL,)),
    Message("tool", "-4", tool_call_id="c1", name="weather"),
)
ANSWER = RecordedAnswer("Yes.", "-4 is cold", (), "m", "r", "d", True, "stop", 7, 4, (1, 2), (3,))


@pytest.mark.parametrize(
    "prompt",
    [
        Prompt("a", "qa", "train", (Message("user", "hi"),)),
        Prompt("b", "qa", "held_out", MESSAGES, ({"type": "function"},), ANSWER),
        Prompt("c", "qa", "train", MESSAGES, None, RecordedAnswer("", tool_calls=(CALL,))),
    ],
    ids=["plain", "everything", "call"],
)
def test_round_trip(prompt: Prompt) -> None:
    assert prompt_of_record(json.loads(json.dumps(prompt.record()))) == prompt


def test_a_plain_turn_holds_nothing_else() -> None:
    """Templates ask for what is defined: a key without a value would be."""
    assert Prompt("a", "qa", "train", (Message("user", "hi"),)).turns() == [{"role": "user", "content": "hi"}]


def test_an_answer_is_stripped_of_its_reasoning_only_where_there_was_some() -> None:
    assert not RecordedAnswer("x").reasoning_stripped
    assert not RecordedAnswer("x", thinking=False, reasoning_tokens=0).reasoning_stripped
    assert RecordedAnswer("x", thinking=True).reasoning_stripped
