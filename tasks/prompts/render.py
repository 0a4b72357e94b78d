"""Conversations as the target's own chat template writes them, in tokens.

Uses transformers, so it runs in child processes only.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.errors import UsageError
from tasks.prompts.prompt import Message, Prompt, RecordedAnswer

_SHOWN = 5
THINKING = "enable_thinking"
"""The variable by which most chat templates know their thinking mode; others call it `thinking`."""
_THINKING_NAMES = re.compile(r"\b(?:enable_)?thinking\b")
_MAY_RAISE = (TypeError, ValueError, KeyError, AttributeError)
"""What a template's code raises, besides its own errors, on a conversation that it was not written for."""


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
    kind: str = "template"
    """`template`, `tools` or `context length`: what is counted."""


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
        thinking: Passed as `enable_thinking` (or `thinking`) to a template that knows it.
        max_new_tokens: Split -> longest answer, tokens.
        max_model_len: Longest prompt plus answer, tokens.

    Returns:
        Rendered prompts in their order, and those left out with the reason.
    """
    template = str(tokenizer.chat_template)
    options = thinking_options(template, thinking)
    rendered, dropped = [], []
    for prompt in prompts:
        limit = max_new_tokens[prompt.split]
        if prompt.tools and "tools" not in template:
            dropped.append(Dropped(prompt.id, "the chat template does not use tools", "tools"))
            continue
        ids = _ids(tokenizer, prompt, (), options)
        if isinstance(ids, str):
            dropped.append(Dropped(prompt.id, ids))
        elif len(ids) + limit > max_model_len:
            reason = f"{len(ids)} prompt + {limit} new tokens exceed target.max_model_len {max_model_len}"
            dropped.append(Dropped(prompt.id, reason, "context length"))
        else:
            rendered.append(Rendered(prompt, ids, limit))
    return rendered, dropped


def thinking_options(template: str, thinking: bool) -> dict[str, bool]:
    """Variables that tell a template its thinking mode; none for one that has no such mode."""
    return dict.fromkeys(sorted(set(_THINKING_NAMES.findall(template))), thinking)


def render_answer(
    rendered: Rendered, tokenizer: Any, *, thinking: bool, max_model_len: int
) -> tuple[int, ...] | Dropped:
    """Token ids of a prompt's recorded answer, as they follow the prompt; or why there are none.

    The ids that the server logged are taken if the logged prompt is this one, token for token. Otherwise the
    template writes the conversation with the answer: it must begin with the prompt. What follows the end of
    the turn (a newline, in many templates) was not the model's, and an answer that ran into its limit has no
    end. A template that leaves out reasoning or text of the answer does not give it back.

    Args:
        rendered: A prompt with `recorded`.
        max_model_len: Longest prompt plus answer, tokens.
    """
    prompt, answer = rendered.prompt, rendered.prompt.recorded
    if answer is None:
        raise ValueError(f"the prompt '{prompt.id}' has no recorded answer")
    if answer.token_ids and answer.prompt_token_ids == rendered.prompt_ids:
        ids: tuple[int, ...] | str = answer.token_ids
    else:
        options = thinking_options(str(tokenizer.chat_template), thinking)
        ids = _written_answer(rendered, answer, tokenizer, options)
    if isinstance(ids, str):
        return Dropped(prompt.id, ids)
    if len(rendered.prompt_ids) + len(ids) > max_model_len:
        reason = (
            f"{len(rendered.prompt_ids)} prompt + {len(ids)} answer tokens exceed target.max_model_len "
            f"{max_model_len}"
        )
        return Dropped(prompt.id, reason, "context length")
    return ids


def _written_answer(
    rendered: Rendered, answer: RecordedAnswer, tokenizer: Any, options: Mapping[str, bool]
) -> tuple[int, ...] | str:
    """Token ids of the answer as the template writes it, or why it does not give it back."""
    whole = _ids(tokenizer, rendered.prompt, (answer.message(),), options)
    if isinstance(whole, str):
        return whole
    ids = _after_prompt(rendered, whole, frozenset(tokenizer.all_special_ids))
    before = str(_applied(tokenizer, rendered.prompt, (), options, tokenize=False))
    written = str(_applied(tokenizer, rendered.prompt, (answer.message(),), options, tokenize=False))
    said = written.removeprefix(before)
    if any(part.strip() not in said for part in (answer.text, answer.reasoning or "")):
        return "the chat template leaves out what the answer says or thinks"
    return ids


def prompt_text(prompt: Prompt, tokenizer: Any, *, thinking: bool) -> str:
    """A prompt that `render` accepted, as its template writes it, generation prompt included."""
    options = thinking_options(str(tokenizer.chat_template), thinking)
    return str(_applied(tokenizer, prompt, (), options, tokenize=False))


def _after_prompt(
    rendered: Rendered, whole: tuple[int, ...], special: frozenset[int]
) -> tuple[int, ...] | str:
    """What follows the prompt, up to the end of the turn: its last special token.

    That token need not be the tokenizer's own end token (`<|im_end|>` is not, in some).
    """
    size = len(rendered.prompt_ids)
    if whole[:size] != rendered.prompt_ids:
        return "the chat template writes the answered conversation not as the prompt and what follows"
    ids = whole[size:]
    last = next((place for place in range(len(ids) - 1, -1, -1) if ids[place] in special), None)
    if last is not None:
        answer = rendered.prompt.recorded
        cut_off = answer is not None and answer.finish_reason == "length"
        ids = ids[: last if cut_off else last + 1]
    return ids or "the recorded answer has no token: there is nothing to train on"


def _ids(
    tokenizer: Any, prompt: Prompt, answer: Sequence[Message], options: Mapping[str, bool]
) -> tuple[int, ...] | str:
    """Token ids, or why the template refuses the conversation."""
    from jinja2 import TemplateError

    try:
        ids = _applied(tokenizer, prompt, answer, options, tokenize=True)
    except TemplateError as error:
        return f"the chat template refuses it: {error}"
    except _MAY_RAISE as error:
        return f"the chat template cannot write it ({type(error).__name__})"
    return tuple(int(token) for token in ids)


def _applied(
    tokenizer: Any, prompt: Prompt, answer: Sequence[Message], options: Mapping[str, bool], *, tokenize: bool
) -> Any:
    """The conversation as the template writes it: a list of ids, or text."""
    return tokenizer.apply_chat_template(
        [*prompt.turns(), *(message.as_turn() for message in answer)],
        tools=list(prompt.tools) if prompt.tools else None,
        tokenize=tokenize,
        add_generation_prompt=not answer,
        **({"return_dict": False} if tokenize else {}),
        **options,
    )


def refuse_too_many(dropped: Sequence[Dropped], total: int, max_bad_rows: float) -> None:
    """Stop when too many prompts cannot be asked.

    Raises:
        UsageError: The share exceeds `max_bad_rows`, or nothing is left.
    """
    if len(dropped) <= max_bad_rows * total and len(dropped) < total:
        return
    shown = "; ".join(f"{row.prompt_id}: {row.reason}" for row in dropped[:_SHOWN])
    kinds = Counter(row.kind for row in dropped)
    counted = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    raise UsageError(
        f"{len(dropped)} of {total} prompts cannot be asked"
        + (f" ({counted}): {shown}" if len(kinds) > 1 else f": {shown}"),
        where="prompts",
        hint="shorten them, raise target.max_model_len, or lower the new tokens "
        f"(limit: prompts.max_bad_rows {max_bad_rows:g})",
    )
