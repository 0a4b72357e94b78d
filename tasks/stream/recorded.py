"""Recorded answers: which of them this very target gave, and their tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.errors import UsageError
from tasks.prompts.prompt import RecordedAnswer
from tasks.prompts.render import Dropped, Rendered, render_answer
from tasks.stream.sample import GivenAnswer
from tasks.stream.settings import AnswerSettings

KEPT = "kept"
STRIPPED = "reasoning_stripped"
NOT_RENDERABLE = "not_renderable"
TOO_LONG = "too_long"
VERDICTS: Mapping[str, str] = {
    KEPT: "the target gave this answer: it is only read",
    "absent": "the prompt has no recorded answer",
    "model": "another model's, or the log does not say whose",
    "revision": "another revision's",
    "template": "rendered with another chat template, or the log does not say with which",
    "thinking": "given in another thinking mode, or the log does not say in which",
    STRIPPED: "a thinking model's answer without its reasoning",
    "finish_reason": "neither stopped nor cut, or the log does not say",
    NOT_RENDERABLE: "the chat template does not give it back as it was",
    TOO_LONG: "prompt and answer exceed the context",
}
"""Every verdict on a recorded answer, with its meaning."""
_OPENS_REASONING = "<think>"
_CLOSES_REASONING = "</think>"


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
    thought = thinking or always_thinks or recorded.reasoning_stripped
    if thought and not recorded.reasoning and _CLOSES_REASONING not in recorded.text:
        return STRIPPED
    ends = ("stop", "length", "tool_calls") if recorded.tool_calls else ("stop", "length")
    return KEPT if recorded.finish_reason in ends else "finish_reason"


def opens_reasoning(prompt_text: str) -> bool:
    """Whether a rendered prompt ends inside the reasoning."""
    return prompt_text.rstrip().endswith(_OPENS_REASONING)


def tokens_of(rendered: Rendered, tokenizer: Any, *, thinking: bool, max_model_len: int) -> GivenAnswer | str:
    """The tokens of a prompt's recorded answer, or the verdict on one that cannot be had back.

    Args:
        rendered: A prompt whose recorded answer is the target's.
    """
    assert rendered.prompt.recorded is not None, "the verdict came first"
    ids = render_answer(rendered, tokenizer, thinking=thinking, max_model_len=max_model_len)
    if isinstance(ids, Dropped):
        return TOO_LONG if ids.kind == "context length" else NOT_RENDERABLE
    return GivenAnswer(ids, str(rendered.prompt.recorded.finish_reason))


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
