"""Judges messages and tools in the form of the OpenAI chat API."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.prompts.bad_row import BadRow
from tasks.prompts.prompt import Message, ToolCall, Tools

ROLES = ("system", "user", "assistant", "tool")
REDACTED = "redacted-by-litellm"
"""What LiteLLM's proxy writes instead of text with `turn_off_message_logging`."""
_MAY_FOLLOW = {
    "user": ("system", "assistant", "tool"),
    "assistant": ("user", "tool"),
    "tool": ("assistant", "tool"),
}


def messages_of(raw: Any) -> tuple[Message, ...]:
    """Turns in an order that a chat can have: a system turn only first, then the user.

    Raises:
        BadRow: Why they cannot be used.
    """
    if not isinstance(raw, list) or not raw:
        raise BadRow("it has neither messages nor a prompt")
    messages = tuple(message_of(turn) for turn in raw)
    roles = [message.role for message in messages]
    if "system" in roles[1:]:
        raise BadRow("a system turn is not the first", "roles")
    turns = messages[1:] if roles[0] == "system" else messages
    if "user" not in roles:
        raise BadRow("it has no user turn", "roles")
    if turns[0].role != "user":
        raise BadRow(f"the conversation begins with {_a(turns[0].role)} turn", "roles")
    for before, after in itertools.pairwise(turns):
        _check_order(before, after)
    return messages


def _check_order(before: Message, after: Message) -> None:
    if before.role == after.role != "tool":
        raise BadRow(f"two {before.role} turns follow each other", "roles")
    called = bool(before.tool_calls) or before.role == "tool"
    if before.role not in _MAY_FOLLOW[after.role] or (after.role == "tool" and not called):
        raise BadRow(
            f"{_a(after.role)} turn follows {_a(before.role)} turn that does not ask for it", "roles"
        )


def _a(role: str) -> str:
    return f"an {role}" if role == "assistant" else f"a {role}"


def message_of(turn: Any) -> Message:
    """One turn.

    Raises:
        BadRow: Why it cannot be used.
    """
    if not isinstance(turn, Mapping) or turn.get("role") not in ROLES:
        raise BadRow(f"a turn's role is not one of {', '.join(ROLES)}", "roles")
    role = str(turn["role"])
    content = content_of(turn.get("content"), role)
    reasoning = reasoning_of(turn) if role == "assistant" else None
    calls = calls_of(turn.get("tool_calls")) if role == "assistant" else ()
    # A tool may well return nothing.
    if not content.strip() and not calls and not reasoning and role != "tool":
        raise BadRow(f"{_a(role)} turn is empty", "empty")
    return Message(role, content, reasoning, calls, _text(turn, "tool_call_id"), _text(turn, "name"))


def content_of(content: Any, role: str) -> str:
    """Text of a turn; text parts are joined by newlines, as vLLM does.

    Raises:
        BadRow: It holds something else than text, or the gateway took the text out.
    """
    if content is None:
        return ""
    if isinstance(content, list):
        kinds = {str(part.get("type")) for part in content if isinstance(part, Mapping)}
        if kinds - {"text"}:
            raise BadRow(f"a {role} turn holds {', '.join(sorted(kinds - {'text'}))}; only text can be used")
        parts = [part.get("text") if isinstance(part, Mapping) else None for part in content]
        texts = [part for part in parts if isinstance(part, str)]
        content = "\n".join(texts) if len(texts) == len(parts) else None
    if not isinstance(content, str):
        raise BadRow(f"a {role} turn's content is not text")
    if content == REDACTED:
        raise BadRow(f"a {role} turn's text was taken out by the gateway", "redacted")
    return content


def reasoning_of(turn: Mapping[str, Any]) -> str | None:
    """What a model thought: `reasoning` (vLLM now) or `reasoning_content` (before, and LiteLLM)."""
    for name in ("reasoning", "reasoning_content"):
        value = turn.get(name)
        if isinstance(value, str) and value.strip() and value != REDACTED:
            return value
    return None


def calls_of(raw: Any) -> tuple[ToolCall, ...]:
    """Tool calls of a turn.

    Raises:
        BadRow: They do not have the API's form.
    """
    if raw is None:
        return ()
    if not isinstance(raw, list):
        raise BadRow("tool_calls is not a list")
    return tuple(_call(call) for call in raw)


def _call(call: Any) -> ToolCall:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise BadRow("a tool call has no function with a name")
    arguments = function.get("arguments")
    if arguments is None:
        arguments = ""
    elif not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return ToolCall(function["name"], arguments, str(call.get("id") or ""))


def tools_of(raw: Any) -> Tools | None:
    """Tool descriptions of a request; data sets often keep them as JSON text.

    Raises:
        BadRow: They do not have the API's form.
    """
    if isinstance(raw, str):
        raw = json_of(raw)
    if raw is None or raw == []:
        return None
    if not isinstance(raw, Sequence) or isinstance(raw, (str, bytes)):
        raise BadRow("tools is not a list")
    if not all(isinstance(tool, Mapping) for tool in raw):
        raise BadRow("a tool is not an object")
    return tuple(raw)


def json_of(text: str | bytes) -> Any:
    """The value that JSON text holds, or None."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _text(turn: Mapping[str, Any], name: str) -> str | None:
    value = turn.get(name)
    return value if isinstance(value, str) and value else None
