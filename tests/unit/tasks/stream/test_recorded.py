"""Which recorded answers are the target's own, and their tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from tasks.errors import UsageError
from tasks.prompts.prompt import Message, Prompt, RecordedAnswer, ToolCall
from tasks.prompts.render import Rendered
from tasks.stream.recorded import (
    KEPT,
    VERDICTS,
    opens_reasoning,
    refuse_stripped,
    tokens_of,
    verdict_on,
)
from tasks.stream.sample import GivenAnswer
from tasks.stream.settings import AnswerSettings

WORDS = ["user", "assistant", "one", "two", "three", "<think>", "</think>", "<end>"]
TEMPLATE = (
    "{% for m in messages %}{{ m.role }} "
    "{% if m.reasoning_content %}<think> {{ m.reasoning_content }} </think> {% endif %}"
    "{{ m.content }} {% if m.role == 'assistant' %}<end> {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)
TARGET = AnswerSettings(answers="recorded", target_names=("kimi", "models/kimi"), template_digest="d")
GOOD = RecordedAnswer("one two", model="kimi", template_digest="d", thinking=False, finish_reason="stop")


def tokenizer(template: str = TEMPLATE) -> Any:
    model = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="one"))
    model.pre_tokenizer = WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=model, eos_token="<end>")
    fast.chat_template = template
    return fast


def given_of(
    answer: RecordedAnswer,
    template: str = TEMPLATE,
    prompt_ids: tuple[int, ...] = (0, 4, 1),
    max_model_len: int = 64,
) -> GivenAnswer | str:
    """The answer after the prompt `user three assistant`, whose ids `template` gives."""
    prompt = Prompt("p", "qa", "train", (Message("user", "three"),), None, answer)
    rendered = Rendered(prompt, prompt_ids, 8)
    return tokens_of(rendered, tokenizer(template), thinking=False, max_model_len=max_model_len)


def verdict(answer: RecordedAnswer | None, thinking: bool = False, always: bool = False) -> str:
    return verdict_on(answer, TARGET, thinking=thinking, always_thinks=always)


def test_the_targets_own_answer_is_kept() -> None:
    assert verdict(GOOD) == verdict(replace(GOOD, model="models/kimi", finish_reason="length")) == KEPT
    thought = replace(GOOD, thinking=True, reasoning="three")
    assert verdict(thought, thinking=True) == KEPT
    assert verdict(replace(thought, reasoning=None, text="three </think> one"), thinking=True) == KEPT


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (None, "absent"),
        (replace(GOOD, model="other"), "model"),
        (replace(GOOD, model=None), "model"),
        (replace(GOOD, revision="r2"), "revision"),
        (replace(GOOD, template_digest=None), "template"),
        (replace(GOOD, thinking=True), "thinking"),
        (replace(GOOD, thinking=None), "thinking"),
        (replace(GOOD, finish_reason="tool_calls"), "finish_reason"),
        (replace(GOOD, finish_reason=None), "finish_reason"),
    ],
)
def test_what_is_not_surely_the_targets_is_not_kept(answer: RecordedAnswer | None, expected: str) -> None:
    assert verdict(answer) == expected and expected in VERDICTS


def test_stripped_reasoning_is_recognised() -> None:
    assert verdict(replace(GOOD, thinking=True), thinking=True) == "reasoning_stripped"
    assert verdict(GOOD, always=True) == "reasoning_stripped"
    assert opens_reasoning("user hi assistant <think>\n") and not opens_reasoning(
        "assistant <think> </think>"
    )
    with pytest.raises(UsageError, match="30 of 40 recorded answers"):
        refuse_stripped({"reasoning_stripped": 30, KEPT: 10, "model": 500}, 0.05)
    refuse_stripped({"reasoning_stripped": 1, KEPT: 99}, 0.05)
    refuse_stripped({}, 0.0)


def test_a_logged_count_of_thoughts_tells_that_they_were_stripped() -> None:
    assert verdict(replace(GOOD, reasoning_tokens=7)) == "reasoning_stripped"


def test_a_call_is_a_whole_answer() -> None:
    call = replace(GOOD, text="", tool_calls=(ToolCall("weather", "{}"),), finish_reason="tool_calls")
    assert verdict(call) == KEPT


def test_tokens_end_where_the_turn_ends() -> None:
    assert given_of(GOOD) == GivenAnswer((2, 3, 7), "stop")
    cut = replace(GOOD, finish_reason="length")
    assert given_of(cut) == GivenAnswer((2, 3), "length"), "an answer that was cut never came to its end"


def test_reasoning_is_part_of_the_answer() -> None:
    assert given_of(replace(GOOD, reasoning="three")) == GivenAnswer((5, 4, 6, 2, 3, 7), "stop")


@pytest.mark.parametrize(
    ("template", "prompt_ids"),
    [
        (TEMPLATE.replace("m.reasoning_content", "m.nothing"), (0, 4, 1)),  # drops the reasoning
        (TEMPLATE.replace("assistant {% endif %}", "one {% endif %}"), (0, 4, 2)),  # begins otherwise
        ("{{ raise_exception('no') }}", (0, 4, 1)),
    ],
)
def test_template_that_does_not_give_it_back_is_noticed(template: str, prompt_ids: tuple[int, ...]) -> None:
    assert given_of(replace(GOOD, reasoning="three"), template, prompt_ids) == "not_renderable"


def test_answer_beyond_the_context_is_not_kept() -> None:
    assert given_of(GOOD, max_model_len=5) == "too_long"
