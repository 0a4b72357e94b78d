"""Recorded answers: which of them this very target gave, and their tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tasks.errors import UsageError
from tasks.prompts.recorded import RecordedAnswer
from tasks.stream.sample import GivenAnswer
from tasks.stream.settings import AnswerSettings

KEPT = "kept"
STRIPPED = "reasoning_stripped"
VERDICTS: Mapping[str, str] = {
    KEPT: "the target gave this answer: it is only read",
    "absent": "the prompt has no recorded answer",
    "model": "another model's, or the log does not say whose",
    "revision": "another revision's",
    "template": "rendered with another chat template, or the log does not say with which",
    "thinking": "given in another thinking mode, or the log does not say in which",
    STRIPPED: "a thinking model's answer without its reasoning",
    "finish_reason": "neither stopped nor cut, or the log does not say",
    "not_renderable": "the chat template does not give it back as it was",
    "too_long": "prompt and answer exceed the context",
}
"""Every verdict on a recorded answer, with its meaning."""
_OPENS_REASONING = "<think>"
_CLOSES_REASONING = "</think>"


@dataclass(frozen=True)
class Conversation:
    """A prompt as the chat template writes it.

    Args:
        messages: Turns before the answer, as chat templates want them.
        prompt_ids: Their tokens, generation prompt included.
        options: Variables of the template, thinking mode and tools among them.
    """

    messages: list[dict[str, Any]]
    prompt_ids: tuple[int, ...]
    options: Mapping[str, Any]


def verdict_on(
    recorded: RecordedAnswer | None, target: AnswerSettings, *, thinking: bool, always_thinks: bool
) -> str:
    """Whether the target gave this answer (`kept`), else why it cannot be taken as its.

    Args:
        thinking: Thinking mode of this run.
        always_thinks: The template opens the reasoning whatever the mode.
    """
    if recorded is None:
        return "absent"
    if recorded.model is None or recorded.model not in target.target_names:
        return "model"
    if recorded.revision != target.target_revision:
        return "revision"
    if recorded.template_digest != target.template_digest:
        return "template"
    if recorded.thinking is not thinking:
        return "thinking"
    if (thinking or always_thinks) and not recorded.reasoning and _CLOSES_REASONING not in recorded.text:
        return STRIPPED
    return KEPT if recorded.finish_reason in ("stop", "length") else "finish_reason"


def opens_reasoning(prompt_text: str) -> bool:
    """Whether a rendered prompt ends inside the reasoning."""
    return prompt_text.rstrip().endswith(_OPENS_REASONING)


def prompt_text(conversation: Conversation, tokenizer: Any) -> str:
    """The prompt as text, generation prompt included."""
    return str(
        tokenizer.apply_chat_template(
            conversation.messages, tokenize=False, add_generation_prompt=True, **conversation.options
        )
    )


def tokens_of(recorded: RecordedAnswer, conversation: Conversation, tokenizer: Any) -> GivenAnswer | None:
    """The answer's tokens, as they followed the prompt; None if the template does not give it back whole.

    The template writes prompt and answer; what comes after the prompt is the answer, up to the token that
    ends the turn. An answer that was cut has no such token.
    """
    from jinja2 import TemplateError

    turn = {"role": "assistant", "content": recorded.text}
    if recorded.reasoning:
        turn |= {"reasoning_content": recorded.reasoning, "reasoning": recorded.reasoning}
    try:
        begin = prompt_text(conversation, tokenizer)
        whole = str(
            tokenizer.apply_chat_template(
                [*conversation.messages, turn], tokenize=False, **conversation.options
            )
        )
    except TemplateError:
        return None
    tail = whole.removeprefix(begin)
    parts = (recorded.text.strip(), (recorded.reasoning or "").strip())
    if not whole.startswith(begin) or any(part not in tail for part in parts):
        return None
    if tuple(_encode(begin, tokenizer)) != conversation.prompt_ids:
        return None
    ids = _one_turn(_encode(tail, tokenizer), tokenizer, whole=recorded.finish_reason == "stop")
    return GivenAnswer(tuple(ids), str(recorded.finish_reason))


def _encode(text: str, tokenizer: Any) -> list[int]:
    return [int(token) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]


def _one_turn(ids: list[int], tokenizer: Any, *, whole: bool) -> list[int]:
    """Cut what the template adds behind the turn, and its end token if the answer never came to it."""
    special = set(tokenizer.all_special_ids)
    last = next((i for i in range(len(ids) - 1, -1, -1) if ids[i] in special), None)
    if last is None:
        return ids
    return ids[: last + 1] if whole else ids[:last]


def refuse_stripped(verdicts: Mapping[str, int], max_bad_rows: float) -> None:
    """Refuse a log from which the reasoning was removed: what is left is not what the target wrote.

    Raises:
        UsageError: More than `max_bad_rows` of the answers that are the target's lack their reasoning.
    """
    stripped, kept = verdicts.get(STRIPPED, 0), verdicts.get(KEPT, 0)
    if stripped > max_bad_rows * (stripped + kept):
        raise UsageError(
            f"{stripped} of {stripped + kept} recorded answers of this thinking model have no reasoning: the "
            "log was stripped of it",
            where="prompts.train",
            hint="log the reasoning too (vLLM: reasoning_content), or set stream.answers to generate",
        )
