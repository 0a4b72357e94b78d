"""Rendering with a small real tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from tasks.errors import UsageError
from tasks.prompts.load import Prompt
from tasks.prompts.render import Dropped, load_tokenizer, refuse_too_many, render
from tasks.prompts.rows import Message

WORDS = ["user", "assistant", "one", "two", "three", "think"]
TEMPLATE = (
    "{% for m in messages %}{% if m.content == 'three' %}{{ raise_exception('no threes') }}{% endif %}"
    "{{ m.role }} {{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}{% if enable_thinking %}think{% endif %}"
)
LIMITS = {"train": 4, "held_out": 4, "evaluate": 2}


def tokenizer_of(template: str | None) -> Any:
    model = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="one"))
    model.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=model)
    tokenizer.chat_template = template
    return tokenizer


def prompt(identity: str, text: str) -> Prompt:
    return Prompt(identity, "qa", "train", (Message("user", text),))


@pytest.mark.parametrize(("thinking", "tail"), [(False, [1]), (True, [1, 5])])
def test_generation_prompt_and_thinking(thinking: bool, tail: list[int]) -> None:
    rendered, dropped = render(
        [prompt("a", "one two")],
        tokenizer_of(TEMPLATE),
        thinking=thinking,
        max_new_tokens=LIMITS,
        max_model_len=16,
    )
    assert rendered[0].prompt_ids == (0, 2, 3, *tail) and rendered[0].max_new_tokens == 4
    assert not dropped


def test_refused_and_too_long_prompts_are_dropped_with_a_reason() -> None:
    rendered, dropped = render(
        [prompt("a", "one"), prompt("b", "three"), prompt("c", "one " * 20)],
        tokenizer_of(TEMPLATE),
        thinking=False,
        max_new_tokens=LIMITS,
        max_model_len=16,
    )
    assert [row.prompt.id for row in rendered] == ["a"]
    assert dropped[0].prompt_id == "b" and "no threes" in dropped[0].reason
    assert dropped[1].reason == "22 prompt + 4 new tokens exceed target.max_model_len 16"


def test_too_many_dropped_prompts_stop() -> None:
    rows = [Dropped(f"p-{i}", "too long") for i in range(3)]
    refuse_too_many(rows[:1], 20, 0.05)
    with pytest.raises(UsageError, match="3 of 20 prompts cannot be asked: p-0: too long"):
        refuse_too_many(rows, 20, 0.05)
    with pytest.raises(UsageError):
        refuse_too_many(rows, 3, 1.0)


def test_tokenizer_without_template_is_one_clear_error(tmp_path: Path) -> None:
    tokenizer_of(None).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="has no chat template"):
        load_tokenizer(tmp_path)
