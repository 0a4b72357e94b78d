"""Request and response logs of an OpenAI-compatible gateway.

Four forms of one line are read; `docs/prompts.md` shows each. What they hold is always a chat request
(`messages`, `tools`, `model`) and the chat completion that answered it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tasks.prompts.bad_row import BadRow
from tasks.prompts.prompt import RecordedAnswer
from tasks.prompts.turns import REDACTED, calls_of, content_of, json_of, reasoning_of

_THINKING = ("enable_thinking", "thinking")


@dataclass(frozen=True)
class Exchange:
    """One logged request and what came back."""

    request: Mapping[str, Any]
    response: Any
    """The completion, or whatever stands there when the request failed."""
    status: int | None


def exchange_of(row: Mapping[str, Any]) -> Exchange | None:
    """The exchange that a row is, or None for a row of another kind.

    Raises:
        BadRow: It is an exchange, but its request cannot be read.
    """
    if "request" in row and "response" in row:
        request, response = row["request"], row["response"]
    elif "request_body" in row and "response_body" in row:
        request, response = row["request_body"], row["response_body"]
    elif "body" in row and "response" in row:
        request, response = row["body"], row["response"]
    elif "messages" in row and "response" in row:
        request, response = _spend_log(row), row["response"]
    else:
        return None
    inner, status = _unwrapped(response)
    request, _ = _unwrapped(request)
    if not isinstance(request, Mapping):
        raise BadRow("its request is not a JSON object")
    if "messages" not in request:
        raise BadRow("its request has no messages: only chat completions can be used")
    return Exchange(request, inner, _status(row, status))


def _spend_log(row: Mapping[str, Any]) -> dict[str, Any]:
    """LiteLLM's standard payload: messages beside the response, other parameters in `model_parameters`."""
    parameters = row.get("model_parameters")
    values = dict(parameters) if isinstance(parameters, Mapping) else {}
    messages = row["messages"]
    if isinstance(messages, str):
        if messages == REDACTED:
            raise BadRow("its messages were taken out by the gateway", "redacted")
        messages = json_of(messages)
    return {**values, "messages": messages, "model": row.get("model")}


def _unwrapped(value: Any) -> tuple[Any, int | None]:
    """A body that may be JSON text, or stand under `body` beside a status."""
    if isinstance(value, str):
        value = json_of(value)
    if isinstance(value, Mapping) and "body" in value:
        status = value.get("status_code", value.get("status"))
        return _unwrapped(value["body"])[0], status if isinstance(status, int) else None
    return value, None


def _status(row: Mapping[str, Any], inner: int | None) -> int | None:
    if inner is not None:
        return inner
    found = [row.get(name) for name in ("status_code", "response_status", "status")]
    return next((one for one in found if isinstance(one, int)), None)


def answer_of(exchange: Exchange, row: Mapping[str, Any]) -> RecordedAnswer | str:
    """The recorded answer, or why there is none; the request is then still a prompt.

    Raises:
        BadRow: The answer holds nothing that could be trained on.
    """
    response = exchange.response
    if exchange.status is not None and exchange.status != 200:
        return f"status {exchange.status}"
    if isinstance(response, list):
        return "streamed pieces, not one response"
    choices = response.get("choices") if isinstance(response, Mapping) else None
    if not isinstance(response, Mapping) or not isinstance(choices, list) or not choices:
        return "no choices"
    choice = choices[0] if isinstance(choices[0], Mapping) else {}
    message = choice.get("message")
    if not isinstance(message, Mapping):
        return "no message"
    if message.get("content") == REDACTED:
        return "redacted"
    return _recorded(exchange.request, response, choice, message, row)


def _recorded(
    request: Mapping[str, Any],
    response: Mapping[str, Any],
    choice: Mapping[str, Any],
    message: Mapping[str, Any],
    row: Mapping[str, Any],
) -> RecordedAnswer:
    text = content_of(message.get("content"), "assistant")
    reasoning, calls = reasoning_of(message), calls_of(message.get("tool_calls"))
    if not text.strip() and not reasoning and not calls:
        raise BadRow("the recorded answer is empty", "nothing to train on")
    usage = _mapping(response, "usage")
    return RecordedAnswer(
        text=text,
        reasoning=reasoning,
        tool_calls=calls,
        finish_reason=_str(choice.get("finish_reason")),
        completion_tokens=_int(usage.get("completion_tokens")),
        reasoning_tokens=_int(_mapping(usage, "completion_tokens_details").get("reasoning_tokens")),
        token_ids=_ids(choice.get("token_ids")),
        prompt_token_ids=_ids(response.get("prompt_token_ids")),
        **facts_of(
            row,
            model=_str(response.get("model")) or _str(request.get("model")),
            thinking=_thinking(request),
        ),
    )


def facts_of(
    row: Mapping[str, Any], *, model: str | None = None, thinking: bool | None = None
) -> dict[str, Any]:
    """What a row says about the model that answered: its `target`, or what the exchange itself tells."""
    target = _mapping(row, "target")
    said = target.get("thinking")
    return {
        "model": _str(target.get("model")) or model,
        "revision": _str(target.get("revision")),
        "template_digest": _str(target.get("template_digest")),
        "thinking": said if isinstance(said, bool) else thinking,
    }


def _thinking(request: Mapping[str, Any]) -> bool | None:
    for place in (request, _mapping(request, "extra_body")):
        variables = _mapping(place, "chat_template_kwargs")
        for name in _THINKING:
            if isinstance(variables.get(name), bool):
                return bool(variables[name])
    return None


def _mapping(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = values.get(name)
    return found if isinstance(found, Mapping) else {}


def _str(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _ids(value: Any) -> tuple[int, ...] | None:
    if isinstance(value, list) and value and all(isinstance(one, int) for one in value):
        return tuple(value)
    return None
