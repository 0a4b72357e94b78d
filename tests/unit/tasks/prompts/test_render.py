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
from tasks.prompts.prompt import Message, Prompt, RecordedAnswer, ToolCall
from tasks.prompts.render import (
    Dropped,
    Rendered,
    load_tokenizer,
    refuse_too_many,
    render,
    render_answer,
    thinking_options,
)

WORDS = ["user", "assistant", "one", "two", "three", "think", "tool", "oslo", "weather", "end"]
TEMPLATE = (
    "{% for m in messages %}{% if m.content == 'three' %}{{ raise_exception('no threes') }}{% endif %}"
    "{{ m.role }} {{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}{% if enable_thinking %}think{% endif %}"
)
CHAT = (
    "{% if tools %}{% for t in tools %}weather {{ t.function.name }} {% endfor %}{% endif %}"
    "{% for m in messages %}{{ m.role }} {{ m.content }}"
    "{% for c in m.tool_calls or [] %} {{ c.function.arguments.city + '' }}{% endfor %} end "
    "{% if m.role == 'assistant' %}two {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)
"""After each assistant turn a token that the model never said, as the newline of many templates."""
LIMITS = {"train": 4, "held_out": 4, "evaluate": 2}


def tokenizer_of(template: str | None) -> Any:
    model = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="one"))
    model.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=model)
    tokenizer.chat_template = template
    tokenizer.eos_token = "end"
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


def rendered_of(one: Prompt, template: str = CHAT) -> tuple[list[Rendered], list[Dropped]]:
    return render([one], tokenizer_of(template), thinking=False, max_new_tokens=LIMITS, max_model_len=64)


TOOLS = ({"type": "function", "function": {"name": "weather"}},)
TALK = (
    Message("user", "one"),
    Message("assistant", "", tool_calls=(ToolCall("weather", '{"city": "oslo"}'),)),
    Message("tool", "two"),
)


def said(ids: tuple[int, ...]) -> str:
    return " ".join(WORDS[i] for i in ids)


def test_tools_and_calls_reach_the_template() -> None:
    (one,), dropped = rendered_of(Prompt("a", "qa", "train", TALK, TOOLS))
    assert said(one.prompt_ids) == (
        "weather weather user one end assistant oslo end two tool two end assistant"
    )
    assert not dropped


def test_a_template_without_tools_is_not_given_any() -> None:
    rendered, (dropped,) = rendered_of(Prompt("a", "qa", "train", TALK[:1], TOOLS), TEMPLATE)
    assert not rendered and dropped.kind == "tools" and "does not use tools" in dropped.reason


def test_a_template_that_fails_on_a_conversation_drops_it_alone() -> None:
    broken = Message("assistant", "", tool_calls=(ToolCall("weather", '{"city": 3}'),))
    rendered, (dropped,) = rendered_of(Prompt("a", "qa", "train", (TALK[0], broken, TALK[2])))
    assert not rendered and dropped.kind == "template" and "TypeError" in dropped.reason


@pytest.mark.parametrize(
    ("template", "names"),
    [
        ("{% if enable_thinking %}x{% endif %}", ["enable_thinking"]),
        ("{% if thinking is defined %}x{% endif %}", ["thinking"]),
        ("{{ message.reasoning }} rethinking", []),
    ],
)
def test_a_thinking_switch_is_found_by_either_name(template: str, names: list[str]) -> None:
    assert thinking_options(template, True) == dict.fromkeys(names, True)


def answer_of(answer: RecordedAnswer, max_model_len: int = 64, template: str = CHAT) -> str | Dropped:
    (one,), _ = rendered_of(Prompt("a", "qa", "train", TALK[:1], None, answer), template)
    found = render_answer(one, tokenizer_of(template), thinking=False, max_model_len=max_model_len)
    return found if isinstance(found, Dropped) else said(found)


def test_a_recorded_answer_ends_with_its_turn() -> None:
    assert answer_of(RecordedAnswer("two two", finish_reason="stop")) == "two two end"
    assert answer_of(RecordedAnswer("two two", finish_reason="length")) == "two two"


def test_a_recorded_call_is_written_by_the_template() -> None:
    call = RecordedAnswer("", tool_calls=(ToolCall("weather", '{"city": "oslo"}'),))
    assert answer_of(call) == "oslo end"


def test_logged_ids_are_taken_only_for_the_same_prompt() -> None:
    ours = rendered_of(Prompt("a", "qa", "train", TALK[:1]))[0][0].prompt_ids
    assert answer_of(RecordedAnswer("two", token_ids=(4, 4), prompt_token_ids=ours)) == "three three"
    assert answer_of(RecordedAnswer("two", token_ids=(4, 4), prompt_token_ids=(1,))) == "two end"
    assert answer_of(RecordedAnswer("two", token_ids=(4, 4))) == "two end"


def test_what_keeps_a_recorded_answer_from_use() -> None:
    long = answer_of(RecordedAnswer("two " * 30), max_model_len=20)
    assert (
        isinstance(long, Dropped) and long.kind == "context length" and "4 prompt + 31 answer" in long.reason
    )
    other = answer_of(RecordedAnswer("two"), template=CHAT.replace("%}assistant {", "%}assistant think {"))
    assert isinstance(other, Dropped) and "not as the prompt" in other.reason


def test_kinds_are_counted_when_too_many_are_dropped() -> None:
    rows = [Dropped("a", "too long", "context length"), Dropped("b", "no", "tools")]
    with pytest.raises(UsageError, match=r"2 of 4 .* \(1 context length, 1 tools\): a: too long; b: no"):
        refuse_too_many(rows, 4, 0.1)
