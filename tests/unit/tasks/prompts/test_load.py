"""Prompt files: what is accepted, skipped, refused, and how conversations are split."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from profiles.schema import Profile
from tasks.errors import UsageError
from tasks.prompts.load import MIN_HELD_OUT, PromptSet, conversation_hash, load_prompts
from tasks.prompts.rows import Message


def user(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def write(path: Path, rows: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def good(count: int, word: str = "topic") -> list[dict[str, Any]]:
    return [user(f"tell me everything about {word} number {i} please, in {i} words") for i in range(count)]


def profile_of(tmp_path: Path, **prompts: Any) -> Profile:
    prompts.setdefault("train", (str(tmp_path / "train"),))
    prompts.setdefault("evaluate", (str(tmp_path / "evaluate"),))
    if not (tmp_path / "evaluate").exists():
        write(tmp_path / "evaluate" / "qa-eval.jsonl", [user("an unrelated question for the end")])
    return Profile.model_validate(
        {"name": "t", "target": {"model": "m", "aux_layer_ids": [1]}, "prompts": prompts}
    )


def load(tmp_path: Path, rows: list[Any], **prompts: Any) -> PromptSet:
    write(tmp_path / "train" / "qa.jsonl", rows)
    return load_prompts(profile_of(tmp_path, **prompts))


def test_packaged_prompts_load_and_every_domain_is_evaluated() -> None:
    profile = Profile.model_validate(
        {
            "name": "t",
            "target": {"model": "m", "aux_layer_ids": [1]},
            "prompts": {"train_per_domain": 44, "evaluate_per_domain": 12},
        }
    )
    loaded = load_prompts(profile)
    assert len(loaded.split("evaluate")) == 9 * 12
    assert len(loaded.split("train")) + len(loaded.split("held_out")) == 9 * 44
    assert len(loaded.split("held_out")) >= MIN_HELD_OUT and not loaded.skipped
    assert loaded.digest == load_prompts(profile).digest


def test_defaults_come_from_the_file(tmp_path: Path) -> None:
    loaded = load(tmp_path, [{"prompt": f"question {i} of many"} for i in range(8)])
    assert [prompt.id for prompt in loaded.prompts[:2]] == ["qa-1", "qa-2"]
    assert {prompt.domain for prompt in loaded.prompts[:8]} == {"qa"}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": [{"role": "assistant", "content": "hello"}]}, "no user turn"),
        (
            {"messages": [{"role": "system", "content": "s"}, {"role": "assistant", "content": "a"}]},
            "no user turn",
        ),
        (
            {"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]},
            "last turn is not the user's",
        ),
        (
            {"messages": [{"role": "user", "content": "u"}, {"role": "user", "content": "v"}]},
            "two user turns",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": "u"},
                    {"role": "assistant", "content": " "},
                    {"role": "user", "content": "v"},
                ]
            },
            "assistant turn is empty",
        ),
        (
            {"messages": [{"role": "user", "content": "u"}, {"role": "system", "content": "s"}]},
            "system turn is not the first",
        ),
        ({"messages": [{"role": "tool", "content": "u"}]}, "role is not one of"),
        ({"messages": []}, "neither messages nor a prompt"),
        ({"messages": [{"role": "user", "content": ["part"]}]}, "content is not text"),
        ({**user("x"), "domain": "../etc"}, "domain"),
        ({**user("x"), "id": "qa-1"}, "a second time"),
        ("{broken", "not a JSON object"),
        ("[1]", "not a JSON object"),
    ],
)
def test_bad_row_is_skipped_with_line_and_reason(tmp_path: Path, row: Any, reason: str) -> None:
    loaded = load(tmp_path, [*good(30), row])
    assert len(loaded.skipped) == 1 and loaded.skipped[0].line == 31
    assert reason in loaded.skipped[0].reason
    assert str(loaded.skipped[0]).startswith("qa.jsonl:31: ")


def test_too_many_bad_rows_stop_with_the_first_of_them(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"3 of 23 rows.*qa.jsonl:21: not a JSON") as caught:
        load(tmp_path, [*good(20), "x", "y", "z"])
    assert caught.value.where == "prompts.train" and "max_bad_rows" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "is empty"), ("\n \n", "is empty"), ("just\ntext\n", "is not JSONL"), ("[1]\n2\n", "is not JSONL")],
)
def test_unusable_file_names_field_and_file(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        load_prompts(profile_of(tmp_path, train=(str(path),)))
    assert caught.value.where == "prompts.train" and str(path) in caught.value.what and caught.value.hint


@pytest.mark.parametrize("name", ["missing.jsonl", "package:prompts/missing"])
def test_missing_file_names_field_and_value(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="no prompt file or folder") as caught:
        load_prompts(
            profile_of(tmp_path, evaluate=(name,), train=(str(write(tmp_path / "a.jsonl", good(8))),))
        )
    assert caught.value.where == "prompts.evaluate" and name in caught.value.what


def test_split_follows_the_conversation_not_its_place(tmp_path: Path) -> None:
    rows = [{**row, "id": f"id-{i}"} for i, row in enumerate(good(200))]
    first = load(tmp_path / "a", rows)
    second = load(tmp_path / "b", rows[::-1])
    held = {prompt.id for prompt in first.split("held_out")}
    assert held == {prompt.id for prompt in second.split("held_out")}
    assert 4 <= len(held) <= 40
    assert first.digest != second.digest


def test_equal_conversations_fall_on_one_side() -> None:
    messages = [Message("user", "the same")]
    assert conversation_hash(messages) == conversation_hash([Message("user", "the same")])
    assert conversation_hash(messages) != conversation_hash([Message("system", "the same")])


def test_small_set_still_holds_some_out(tmp_path: Path) -> None:
    assert len(load(tmp_path, good(10)).split("held_out")) >= MIN_HELD_OUT


def test_too_few_conversations_to_hold_out(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="too few") as caught:
        load(tmp_path, good(5))
    assert caught.value.where == "prompts.held_out"


def test_limit_takes_the_first_of_each_domain(tmp_path: Path) -> None:
    write(tmp_path / "train" / "writing.jsonl", good(20, "poem"))
    loaded = load(tmp_path, good(20), train_per_domain=6)
    training = [prompt for prompt in loaded.prompts if prompt.split != "evaluate"]
    assert len(training) == 12 and {prompt.id for prompt in training} >= {"qa-1", "qa-6", "writing-6"}


def test_evaluation_prompt_like_a_training_prompt_is_refused(tmp_path: Path) -> None:
    text = "please write a short poem about the sea and the wind in winter for my"
    write(tmp_path / "evaluate" / "qa-eval.jsonl", [user(text + " sister")])
    with pytest.raises(UsageError, match=r"qa-eval-1 and qa-9 0\.85") as caught:
        load(tmp_path, [*good(8), user(text + " brother")])
    assert caught.value.where == "prompts.max_similarity"
