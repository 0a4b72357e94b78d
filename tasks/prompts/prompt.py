"""What a prompt is: messages, tools, and the answer that a log recorded for it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Split = Literal["train", "held_out", "evaluate"]
Tools = tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class ToolCall:
    """One function call of an assistant turn."""

    name: str
    arguments: str
    """JSON text, as the API carries it."""
    id: str = ""

    def as_turn(self) -> dict[str, Any]:
        """As chat templates want it: arguments as an object where they are one, as vLLM passes them."""
        try:
            arguments = json.loads(self.arguments) if self.arguments else {}
        except ValueError:
            arguments = self.arguments
        call = {"type": "function", "function": {"name": self.name, "arguments": arguments}}
        return {"id": self.id, **call} if self.id else call


@dataclass(frozen=True)
class Message:
    """One turn of a conversation."""

    role: str
    content: str
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None

    def as_turn(self) -> dict[str, Any]:
        """As chat templates want it. Reasoning goes under both names that templates read, as in vLLM."""
        turn: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.reasoning is not None:
            turn |= {"reasoning": self.reasoning, "reasoning_content": self.reasoning}
        if self.tool_calls:
            turn["tool_calls"] = [call.as_turn() for call in self.tool_calls]
        if self.tool_call_id is not None:
            turn["tool_call_id"] = self.tool_call_id
        if self.name is not None:
            turn["name"] = self.name
        return turn

    def key(self) -> list[Any]:
        """What makes two turns the same turn; ids of calls do not count."""
        extras = [self.reasoning, [[call.name, call.arguments] for call in self.tool_calls]]
        return [self.role, self.content, *(extras if any(extras) else ())]


@dataclass(frozen=True)
class RecordedAnswer:
    """An answer that a log holds, with what the log says about the model that gave it.

    None means that the log does not say.
    """

    text: str
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    model: str | None = None
    revision: str | None = None
    template_digest: str | None = None
    thinking: bool | None = None
    finish_reason: str | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    token_ids: tuple[int, ...] | None = None
    """The answer's own token ids, where the server returned them (`return_token_ids`)."""
    prompt_token_ids: tuple[int, ...] | None = None

    @property
    def reasoning_stripped(self) -> bool:
        """The model reasoned, and the log does not hold what it thought: the answer cannot be replayed."""
        return self.reasoning is None and bool(self.reasoning_tokens or self.thinking)

    def message(self) -> Message:
        """The assistant turn that this answer is."""
        return Message("assistant", self.text, self.reasoning, self.tool_calls)


@dataclass(frozen=True)
class Prompt:
    """Messages up to one answer, which the target will give or a log recorded."""

    id: str
    domain: str
    split: Split
    messages: tuple[Message, ...]
    tools: Tools | None = None
    recorded: RecordedAnswer | None = None

    @property
    def text(self) -> str:
        """What the conversation says, for comparisons."""
        return text_of(self.messages)

    def turns(self) -> list[dict[str, Any]]:
        """Messages as chat templates want them."""
        return [message.as_turn() for message in self.messages]

    def record(self) -> dict[str, Any]:
        """The prompt as one JSON object; `prompt_of_record` reads it back."""
        record: dict[str, Any] = {"id": self.id, "domain": self.domain, "split": self.split}
        record["messages"] = [_said(message) for message in self.messages]
        if self.tools is not None:
            record["tools"] = list(self.tools)
        if self.recorded is not None:
            record["recorded"] = _said(self.recorded)
        return record


def text_of(messages: Sequence[Message]) -> str:
    """What is compared between conversations: every turn but the system's, which many of them share."""
    return "\n".join(message.content for message in messages if message.role != "system")


def prompt_of_record(record: Mapping[str, Any]) -> Prompt:
    """The prompt that `Prompt.record` wrote, also after a way through JSON."""
    recorded = record.get("recorded")
    tools = record.get("tools")
    return Prompt(
        id=record["id"],
        domain=record["domain"],
        split=record["split"],
        messages=tuple(Message(**_with_calls(turn)) for turn in record["messages"]),
        tools=None if tools is None else tuple(tools),
        recorded=None if recorded is None else RecordedAnswer(**_with_ids(_with_calls(recorded))),
    )


def _said(of: Message | RecordedAnswer) -> dict[str, Any]:
    """The fields that have a value."""
    values = {name: value for name, value in vars(of).items() if value is not None and value != ()}
    if of.tool_calls:
        values["tool_calls"] = [vars(call) for call in of.tool_calls]
    return values


def _with_calls(values: Mapping[str, Any]) -> dict[str, Any]:
    return {**values, "tool_calls": tuple(ToolCall(**call) for call in values.get("tool_calls", ()))}


def _with_ids(values: dict[str, Any]) -> dict[str, Any]:
    found = {name: values.get(name) for name in ("token_ids", "prompt_token_ids")}
    return values | {name: None if ids is None else tuple(ids) for name, ids in found.items()}
