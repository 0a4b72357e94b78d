"""Logged requests and responses: what is taken from each form, and what is not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from prompt_rows import good, load

from tasks.errors import UsageError
from tasks.prompts.bad_row import BadRow
from tasks.prompts.prompt import RecordedAnswer
from tasks.prompts.rows import Row, row_of

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {}}}
REQUEST: dict[str, Any] = {
    "model": "served",
    "messages": [{"role": "user", "content": "Is it cold in Oslo?"}],
    "tools": [TOOL],
    "chat_template_kwargs": {"enable_thinking": True},
}
RESPONSE: dict[str, Any] = {
    "id": "chatcmpl-1",
    "model": "org/model",
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": "Yes.", "reasoning": "It is winter."},
        }
    ],
    "usage": {
        "prompt_tokens": 9,
        "completion_tokens": 7,
        "completion_tokens_details": {"reasoning_tokens": 4},
    },
}
FORMS: dict[str, dict[str, Any]] = {
    "request and response": {"id": "a", "request": REQUEST, "response": RESPONSE},
    "bodies below": {"id": "a", "request": {"body": REQUEST}, "response": {"status": 200, "body": RESPONSE}},
    "bodies as text": {
        "id": "a",
        "request_body": json.dumps(REQUEST),
        "response_body": json.dumps(RESPONSE),
        "response_status": 200,
    },
    "batch": {"custom_id": "a", "body": REQUEST, "response": {"status_code": 200, "body": RESPONSE}},
    "LiteLLM": {
        "id": "a",
        "status": "success",
        "model": "served",
        "messages": REQUEST["messages"],
        "response": RESPONSE,
        "model_parameters": {
            "tools": [TOOL],
            "extra_body": {"chat_template_kwargs": {"enable_thinking": True}},
        },
    },
}


def changed(**response: Any) -> dict[str, Any]:
    return {"id": "a", "request": REQUEST, "response": {**RESPONSE, **response}}


def answered(message: dict[str, Any], **choice: Any) -> dict[str, Any]:
    return changed(choices=[{"message": message, **choice}])


def recorded(row: Row) -> RecordedAnswer:
    answer = row.samples[0].recorded
    assert answer is not None
    return answer


@pytest.mark.parametrize("form", FORMS)
def test_each_form_gives_the_same_sample(form: str) -> None:
    row = row_of(FORMS[form], "log", 1)
    assert row.id == "a" and row.domain == "log" and row.tools == (TOOL,) and len(row.messages) == 1
    assert recorded(row) == RecordedAnswer(
        text="Yes.",
        reasoning="It is winter.",
        model="org/model",
        thinking=True,
        finish_reason="stop",
        completion_tokens=7,
        reasoning_tokens=4,
    )


def test_only_the_response_is_a_sample_of_an_exchange() -> None:
    history = [*REQUEST["messages"], {"role": "assistant", "content": "Yes."}, *REQUEST["messages"]]
    row = row_of({"request": {**REQUEST, "messages": history}, "response": RESPONSE}, "log", 4)
    assert len(row.samples) == 1 and row.samples[0].turns == 3 and row.id == "log-4"


def test_a_row_may_say_what_the_gateway_does_not_know() -> None:
    target = {"model": "m", "revision": "abc", "template_digest": "d", "thinking": False}
    answer = recorded(row_of({**FORMS["LiteLLM"], "target": target}, "log", 1))
    assert (answer.model, answer.revision, answer.template_digest, answer.thinking) == (
        "m",
        "abc",
        "d",
        False,
    )


def test_token_ids_of_the_server_are_kept() -> None:
    row = changed(prompt_token_ids=[1, 2], choices=[{**RESPONSE["choices"][0], "token_ids": [3, 4]}])
    answer = recorded(row_of(row, "log", 1))
    assert answer.token_ids == (3, 4) and answer.prompt_token_ids == (1, 2)


def test_an_answer_may_be_a_tool_call_alone() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    answer = recorded(row_of(answered({"content": None, "tool_calls": [call]}), "log", 1))
    assert answer.text == "" and answer.tool_calls[0].name == "weather"


@pytest.mark.parametrize(
    ("message", "tokens", "stripped"),
    [
        ({"content": "Yes."}, 4, True),
        ({"content": "Yes.", "reasoning_content": "It is winter."}, 4, False),
        ({"content": "Yes.", "reasoning": "redacted-by-litellm"}, 4, True),
    ],
)
def test_stripped_reasoning_is_recognised(message: dict[str, Any], tokens: int, stripped: bool) -> None:
    usage = {"completion_tokens_details": {"reasoning_tokens": tokens}}
    row = changed(choices=[{"message": message}], usage=usage)
    assert recorded(row_of(row, "log", 1)).reasoning_stripped is stripped


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({**FORMS["batch"], "response": {"status_code": 429, "body": {"error": {}}}}, "status 429"),
        ({**FORMS["bodies as text"], "response_status": 500}, "status 500"),
        ({**FORMS["LiteLLM"], "status": "failure", "response": {}}, "no choices"),
        ({**FORMS["request and response"], "response": None}, "no choices"),
        ({**FORMS["request and response"], "response": [{"choices": []}]}, "streamed pieces"),
        (changed(choices=[{"text": "Yes."}]), "no message"),
        (answered({"content": "redacted-by-litellm"}), "redacted"),
    ],
)
def test_a_request_without_an_answer_is_still_a_prompt(row: dict[str, Any], why: str) -> None:
    found = row_of(row, "log", 1)
    assert why in found.unanswered and found.samples[0].recorded is None and found.samples[0].turns == 1


@pytest.mark.parametrize(
    ("row", "reason", "kind"),
    [
        (answered({"content": " "}), "recorded answer is empty", "nothing to train on"),
        ({"request": {"prompt": "x"}, "response": RESPONSE}, "only chat completions", "form"),
        ({"request": "no json", "response": RESPONSE}, "request is not a JSON object", "form"),
        ({**FORMS["LiteLLM"], "messages": "redacted-by-litellm"}, "taken out by the gateway", "redacted"),
        (
            {
                "request": {"messages": [*REQUEST["messages"], {"role": "assistant", "content": "Y"}]},
                "response": {},
            },
            "ends with an assistant turn",
            "roles",
        ),
    ],
)
def test_what_cannot_be_used_at_all(row: dict[str, Any], reason: str, kind: str) -> None:
    with pytest.raises(BadRow, match=reason) as caught:
        row_of(row, "log", 1)
    assert caught.value.kind == kind


def test_states_of_one_conversation_stay_on_one_side_and_all_count(tmp_path: Path) -> None:
    """A gateway logs the whole history with every request."""
    rows = []
    for talk in range(30):
        history: list[dict[str, str]] = []
        for turn in range(4):
            history = [
                *history,
                {"role": "user", "content": " ".join(f"q{talk}w{turn}x{i}" for i in range(30))},
            ]
            rows.append({"id": f"{talk}-{turn}", "request": {"messages": history}, "response": RESPONSE})
            history = [*history, {"role": "assistant", "content": "Yes."}]
    loaded = load(tmp_path, rows)
    assert loaded.counts.train.prompts == 120 and loaded.counts.leaks == 0
    sides: dict[str, set[str]] = {}
    for prompt in loaded.prompts[:120]:
        sides.setdefault(prompt.id.split("-")[0], set()).add(prompt.split)
    assert all(len(side) == 1 for side in sides.values())
    assert 4 <= sum(side == {"held_out"} for side in sides.values()) <= 10


def test_logged_answers_and_missing_ones_are_counted(tmp_path: Path) -> None:
    rows = [
        {**row, "request": row, "response": RESPONSE if place % 3 else {"error": "x"}}
        for place, row in enumerate(good(30))
    ]
    counts = load(tmp_path, rows).counts
    assert counts.train.unanswered == {"no choices": 10} and counts.recorded == 20
    assert counts.recorded_tokens % 7 == 0 and 0 < counts.recorded_tokens <= 7 * 20
    assert not counts.recorded_tokens_estimated


def test_a_log_without_any_answer_text_stops_and_names_a_row(tmp_path: Path) -> None:
    rows = [
        {"request": row, "response": changed(choices=[{"message": {"content": ""}}])["response"]}
        for row in good(9)
    ]
    with pytest.raises(UsageError, match=r"9 of 9 rows.*qa.jsonl:1: the recorded answer is empty"):
        load(tmp_path, rows)
