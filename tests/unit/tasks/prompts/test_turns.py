"""Turns and tools as the OpenAI chat API carries them."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.prompts.bad_row import BadRow
from tasks.prompts.turns import messages_of, tools_of

CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
TOOL_TALK = [
    {"role": "user", "content": "Is it cold?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "-4"},
    {"role": "tool", "tool_call_id": "c2", "content": ""},
    {"role": "assistant", "content": "Yes.", "reasoning_content": "-4 is cold"},
]


def test_tool_calls_become_objects_for_the_template() -> None:
    messages = messages_of(TOOL_TALK)
    turn = messages[1].as_turn()
    assert turn["content"] == "" and turn["tool_calls"][0] == {
        "id": "c1",
        "type": "function",
        "function": {"name": "weather", "arguments": {"city": "Oslo"}},
    }
    assert messages[2].as_turn() == {"role": "tool", "content": "-4", "tool_call_id": "c1"}
    assert messages[4].as_turn()["reasoning"] == messages[4].as_turn()["reasoning_content"] == "-4 is cold"


def test_arguments_that_are_an_object_are_kept() -> None:
    call = {"function": {"name": "weather", "arguments": {"city": "Ålesund"}}}
    (message,) = messages_of([TOOL_TALK[0], {"role": "assistant", "tool_calls": [call]}])[1:]
    assert message.tool_calls[0].arguments == '{"city": "Ålesund"}'


def test_text_parts_are_joined_as_vllm_joins_them() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert messages_of([{"role": "user", "content": parts}])[0].content == "one\ntwo"


@pytest.mark.parametrize(
    ("turns", "reason", "kind"),
    [
        ([{"role": "user", "content": [{"type": "image_url"}]}], "a user turn holds image_url", "form"),
        ([{"role": "user", "content": "redacted-by-litellm"}], "taken out by the gateway", "redacted"),
        ([{"role": "user", "content": None}], "a user turn is empty", "empty"),
        ([TOOL_TALK[0], {"role": "assistant", "content": ""}], "an assistant turn is empty", "empty"),
        ([TOOL_TALK[0], {"role": "assistant", "tool_calls": [{}]}], "no function with a name", "form"),
        ([TOOL_TALK[0], {"role": "assistant", "tool_calls": {}}], "tool_calls is not a list", "form"),
        (
            [TOOL_TALK[0], {"role": "assistant", "content": "x"}, TOOL_TALK[2]],
            "a tool turn follows an assistant turn that does not ask for it",
            "roles",
        ),
        ([TOOL_TALK[0], TOOL_TALK[4], TOOL_TALK[4]], "two assistant turns follow each other", "roles"),
    ],
)
def test_what_is_refused(turns: list[Any], reason: str, kind: str) -> None:
    with pytest.raises(BadRow, match=reason) as caught:
        messages_of(turns)
    assert caught.value.kind == kind


def test_tools_may_be_json_text() -> None:
    tool = {"type": "function", "function": {"name": "weather"}}
    assert tools_of([tool]) == tools_of('[{"type": "function", "function": {"name": "weather"}}]') == (tool,)
    assert tools_of(None) is None and tools_of([]) is None
    for wrong in ({"name": "x"}, ["x"]):
        with pytest.raises(BadRow, match="tool"):
            tools_of(wrong)
