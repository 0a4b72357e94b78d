"""Judges one row of a source: a prompt, a conversation, or a logged exchange."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.prompts.bad_row import BadRow, Skipped
from tasks.prompts.gateway import answer_of, exchange_of, facts_of
from tasks.prompts.prompt import Message, RecordedAnswer, Tools
from tasks.prompts.turns import messages_of, tools_of

__all__ = ["BadRow", "Message", "Row", "Sample", "Skipped", "row_of"]

_DOMAIN = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
_ID_NAMES = ("id", "request_id", "custom_id")


@dataclass(frozen=True)
class Sample:
    """One answer of a conversation: the target gives it to the turns before, or a log holds it."""

    id: str
    turns: int
    """How many of the row's messages come before the answer."""
    recorded: RecordedAnswer | None = None


@dataclass(frozen=True)
class Row:
    """One usable row: a conversation and its samples, the shortest first."""

    id: str
    domain: str
    messages: tuple[Message, ...]
    tools: Tools | None
    samples: tuple[Sample, ...]
    unanswered: str = ""
    """Why a logged exchange has no recorded answer."""

    def before(self, sample: Sample) -> tuple[Message, ...]:
        """Messages of one sample's prompt."""
        return self.messages[: sample.turns]


def row_of(value: Any, stem: str, number: int) -> Row:
    """Judge one parsed line.

    Args:
        stem: Name of the file without suffixes: the domain, and with `number` the id, of a row without.
        number: Line of the file, from 1.

    Raises:
        BadRow: Why it cannot be used.
    """
    if not isinstance(value, Mapping):
        raise BadRow("not a JSON object", "not a JSON object")
    domain = value.get("domain") or stem
    if not isinstance(domain, str) or not _DOMAIN.match(domain):
        raise BadRow("its domain is not a word of letters, digits, _ . -")
    identity = next((value[name] for name in _ID_NAMES if value.get(name) is not None), f"{stem}-{number}")
    if not isinstance(identity, (str, int)) or not str(identity).strip():
        raise BadRow("its id is not a text")
    row = _exchange_row(value, str(identity), domain) or _chat_row(value, str(identity), domain)
    if not all(_encodes(text) for text in (row.id, *_texts(row))):
        raise BadRow("it holds half a surrogate pair, which is no character", "encoding")
    return row


def _exchange_row(value: Mapping[str, Any], identity: str, domain: str) -> Row | None:
    """Only the response of a logged exchange is a sample: its earlier turns were logged on their own."""
    exchange = exchange_of(value)
    if exchange is None:
        return None
    messages = messages_of(exchange.request["messages"])
    if messages[-1].role == "assistant":
        raise BadRow("its request ends with an assistant turn", "roles")
    answer = answer_of(exchange, value)
    recorded = None if isinstance(answer, str) else answer
    sample = Sample(identity, len(messages), recorded)
    unanswered = answer if isinstance(answer, str) else ""
    return Row(identity, domain, messages, tools_of(exchange.request.get("tools")), (sample,), unanswered)


def _chat_row(value: Mapping[str, Any], identity: str, domain: str) -> Row:
    """A conversation. Each assistant turn is a sample if it ends with one; else its end is the prompt."""
    raw = value.get("messages")
    if raw is None and isinstance(value.get("prompt"), str):
        raw = [{"role": "user", "content": value["prompt"]}]
    if raw is None and isinstance(value.get("text"), str):
        raise BadRow(
            "it is text with the marks of some chat template in it; give its turns as messages, so that the "
            "target's own template can be used"
        )
    messages = messages_of(raw)
    tools = tools_of(value.get("tools"))
    if messages[-1].role != "assistant":
        return Row(identity, domain, messages, tools, (Sample(identity, len(messages)),))
    facts = facts_of(value)
    samples = _samples(messages, identity, facts)
    return Row(identity, domain, messages[: samples[-1].turns], tools, samples)


def _samples(messages: Sequence[Message], identity: str, facts: Mapping[str, Any]) -> tuple[Sample, ...]:
    turns = [place for place, message in enumerate(messages) if message.role == "assistant"]
    names = [identity] if len(turns) == 1 else [f"{identity}.t{count + 1}" for count in range(len(turns))]
    found = zip(turns, names, strict=True)
    return tuple(Sample(name, place, _recorded(messages[place], facts)) for place, name in found)


def _recorded(turn: Message, facts: Mapping[str, Any]) -> RecordedAnswer:
    return RecordedAnswer(turn.content, turn.reasoning, turn.tool_calls, **facts)


def _texts(row: Row) -> Iterator[str]:
    answers = [sample.recorded.message() for sample in row.samples if sample.recorded]
    for message in (*row.messages, *answers):
        yield message.content
        yield message.reasoning or ""
        yield message.name or ""
        yield from (text for call in message.tool_calls for text in (call.name, call.arguments, call.id))
    if row.tools:
        yield json.dumps(row.tools, ensure_ascii=False)


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
