"""Conversations as the target's own chat template writes them, in tokens.

Uses transformers, so it runs in child processes only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.errors import UsageError
from tasks.prompts.load import Prompt

_SHOWN = 5
THINKING = "enable_thinking"
"""The variable by which chat templates know their thinking mode."""


@dataclass(frozen=True)
class Rendered:
    """One prompt in tokens, ready for the target."""

    prompt: Prompt
    prompt_ids: tuple[int, ...]
    max_new_tokens: int


@dataclass(frozen=True)
class Dropped:
    """One prompt that this target cannot be asked."""

    prompt_id: str
    reason: str


def load_tokenizer(folder: Path, *, trust_remote_code: bool = False) -> Any:
    """The target's tokenizer.

    Raises:
        UsageError: It has no chat template.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=trust_remote_code)
    if not tokenizer.chat_template:
        raise UsageError(
            f"the tokenizer in '{folder}' has no chat template",
            where="target.model",
            hint="use the instruction-tuned target, or put its chat_template.jinja into the folder",
        )
    return tokenizer


def render(
    prompts: Iterable[Prompt],
    tokenizer: Any,
    *,
    thinking: bool,
    max_new_tokens: Mapping[str, int],
    max_model_len: int,
) -> tuple[list[Rendered], list[Dropped]]:
    """Apply the chat template, generation prompt included.

    Args:
        tokenizer: From `load_tokenizer`.
        thinking: Passed as `enable_thinking` to a template that knows it.
        max_new_tokens: Split -> longest answer, tokens.
        max_model_len: Longest prompt plus answer, tokens.

    Returns:
        Rendered prompts in their order, and those left out with the reason.
    """
    options = {THINKING: thinking} if THINKING in str(tokenizer.chat_template) else {}
    rendered, dropped = [], []
    for prompt in prompts:
        limit = max_new_tokens[prompt.split]
        ids = _ids(tokenizer, prompt, options)
        if isinstance(ids, str):
            dropped.append(Dropped(prompt.id, ids))
        elif len(ids) + limit > max_model_len:
            reason = f"{len(ids)} prompt + {limit} new tokens exceed target.max_model_len {max_model_len}"
            dropped.append(Dropped(prompt.id, reason))
        else:
            rendered.append(Rendered(prompt, ids, limit))
    return rendered, dropped


def _ids(tokenizer: Any, prompt: Prompt, options: Mapping[str, bool]) -> tuple[int, ...] | str:
    """Token ids, or why the template refuses the conversation."""
    from jinja2 import TemplateError

    try:
        ids = tokenizer.apply_chat_template(
            prompt.turns(), tokenize=True, add_generation_prompt=True, return_dict=False, **options
        )
    except TemplateError as error:
        return f"the chat template refuses it: {error}"
    return tuple(int(token) for token in ids)


def refuse_too_many(dropped: Sequence[Dropped], total: int, max_bad_rows: float) -> None:
    """Stop when too many prompts cannot be asked.

    Raises:
        UsageError: The share exceeds `max_bad_rows`, or nothing is left.
    """
    if len(dropped) <= max_bad_rows * total and len(dropped) < total:
        return
    shown = "; ".join(f"{row.prompt_id}: {row.reason}" for row in dropped[:_SHOWN])
    raise UsageError(
        f"{len(dropped)} of {total} prompts cannot be asked: {shown}",
        where="prompts",
        hint="shorten them, raise target.max_model_len, or lower the new tokens "
        f"(limit: prompts.max_bad_rows {max_bad_rows:g})",
    )
