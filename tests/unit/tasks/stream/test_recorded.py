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
from tasks.prompts.recorded import RecordedAnswer
from tasks.stream.recorded import (
    KEPT,
    VERDICTS,
    Conversation,
    opens_reasoning,
    refuse_stripped,
    tokens_of,
    verdict_on,
)
from tasks.stream.settings import AnswerSettings

WORDS = ["user", "assistant", "one", "two", "three", "<think>", "</think>", "<end>"]
TEMPLATE = (
    "{% for m in messages %}{{ m.role }} "
    "{% if m.reasoning_content %}<think> {{ m.reasoning_content }} </think> {% endif %}"
    "{{ m.content }} {% if m.role == 'assistant' %}<end> {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)
TARGET = AnswerSettings(answers="recorded", target_names=("kimi", "models/kimi"), template_digest="d")
GOOD = RecordedAnswer("one two", None, "kimi", None, "d", False, "stop")


def tokenizer(template: str = TEMPLATE) -> Any:
    model = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="one"))
    model.pre_tokenizer = WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=model, eos_token="<end>")
    fast.chat_template = template
    return fast


def conversation() -> Conversation:
    return Conversation([{"role": "user", "content": "three"}], (0, 4, 1), {})


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


def test_tokens_end_where_the_turn_ends() -> None:
    given = tokens_of(GOOD, conversation(), tokenizer())
    assert given is not None and given.ids == (2, 3, 7) and given.finish_reason == "stop"
    cut = tokens_of(replace(GOOD, finish_reason="length"), conversation(), tokenizer())
    assert cut is not None and cut.ids == (2, 3), "an answer that was cut never came to its end token"


def test_reasoning_is_part_of_the_answer() -> None:
    given = tokens_of(replace(GOOD, reasoning="three"), conversation(), tokenizer())
    assert given is not None and given.ids == (5, 4, 6, 2, 3, 7)


@pytest.mark.parametrize(
    "template",
    [
        TEMPLATE.replace("m.reasoning_content", "m.nothing"),  # drops the reasoning
        TEMPLATE.replace("assistant {% endif %}", "one {% endif %}"),  # begins the turn otherwise
        "{{ raise_exception('no') }}",
    ],
)
def test_template_that_does_not_give_it_back_is_noticed(template: str) -> None:
    assert tokens_of(replace(GOOD, reasoning="three"), conversation(), tokenizer(template)) is None
