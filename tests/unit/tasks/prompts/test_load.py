"""Prompt files: what is accepted, skipped, refused, and how conversations are split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prompt_rows import chat, good, load, profile_of, user, write

from profiles.schema import Profile
from tasks.errors import UsageError
from tasks.prompts.load import MIN_HELD_OUT, conversation_hash, load_prompts
from tasks.prompts.rows import Message


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
            {"messages": [{"role": "assistant", "content": "a"}, {"role": "user", "content": "u"}]},
            "begins with an assistant turn",
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
        ({"messages": [{"role": "critic", "content": "u"}]}, "role is not one of"),
        (
            {"messages": [{"role": "user", "content": "u"}, {"role": "tool", "content": "v"}]},
            "a tool turn follows a user turn that does not ask for it",
        ),
        ({"text": "<|user|> hello <|assistant|> hi"}, "marks of some chat template"),
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


SEA = "please write a short poem about the sea and the wind in winter for my"


def test_a_training_prompt_like_an_evaluation_prompt_is_left_out_and_counted(tmp_path: Path) -> None:
    write(tmp_path / "evaluate" / "qa-eval.jsonl", [user(f"{SEA} sister")])
    loaded = load(tmp_path, [*good(9), user(f"{SEA} brother")])
    assert "qa-10" not in {prompt.id for prompt in loaded.prompts}
    assert loaded.counts.train.dropped == {"like an evaluation prompt": 1}
    assert loaded.counts.train.prompts == 9


def test_or_stops_the_run_where_the_profile_says_so(tmp_path: Path) -> None:
    write(tmp_path / "evaluate" / "qa-eval.jsonl", [user(f"{SEA} sister")])
    with pytest.raises(UsageError, match=r"qa-eval-1 and qa-9 0\.85") as caught:
        load(tmp_path, [*good(8), user(f"{SEA} brother")], contaminated="refuse")
    assert caught.value.where == "prompts.max_similarity" and "exclude" in caught.value.hint


def test_the_same_prompt_on_both_sides_is_found_at_any_limit(tmp_path: Path) -> None:
    write(tmp_path / "evaluate" / "qa-eval.jsonl", [user("Hi, you!")])
    loaded = load(tmp_path, [*good(9), user("hi you")], max_similarity=1.0)
    assert loaded.counts.train.dropped == {"like an evaluation prompt": 1}


def test_an_evaluation_prompt_at_the_start_of_a_conversation_is_found(tmp_path: Path) -> None:
    """The whole conversation is unlike it; its first answer would still be the one that is measured."""
    write(tmp_path / "evaluate" / "qa-eval.jsonl", [user(f"{SEA} sister")])
    long = " ".join(f"word{i}" for i in range(300))
    loaded = load(tmp_path, [*good(9), chat(f"{SEA} sister", long, "now about rain", "it rains")])
    assert loaded.counts.train.dropped == {"like an evaluation prompt": 2}


def test_later_states_of_a_contaminated_conversation_go_with_it(tmp_path: Path) -> None:
    write(tmp_path / "evaluate" / "qa-eval.jsonl", [user(f"{SEA} sister")])
    rows = [user(f"{SEA} sister"), chat(f"{SEA} sister", "waves " * 80, "and now about rain")]
    loaded = load(tmp_path, [*good(9), *rows])
    assert {prompt.id for prompt in loaded.prompts if prompt.split != "evaluate"} == {
        f"qa-{i}" for i in range(1, 10)
    }


def test_every_assistant_turn_of_a_finished_conversation_is_a_sample(tmp_path: Path) -> None:
    row = chat("first question", "first answer", "second question", "second answer", system="be kind")
    loaded = load(tmp_path, [*good(12), {**row, "id": "talk", "target": {"model": "m", "thinking": False}}])
    found = {prompt.id: prompt for prompt in loaded.prompts if prompt.id.startswith("talk")}
    assert list(found) == ["talk.t1", "talk.t2"]
    assert [m.content for m in found["talk.t1"].messages] == ["be kind", "first question"]
    assert [m.role for m in found["talk.t2"].messages] == ["system", "user", "assistant", "user"]
    answers = [prompt.recorded for prompt in found.values()]
    assert [answer.text for answer in answers if answer] == ["first answer", "second answer"]
    assert all(answer and answer.model == "m" and answer.thinking is False for answer in answers)
    assert len({prompt.split for prompt in found.values()}) == 1
    assert loaded.counts.recorded == 2


def test_a_conversation_that_waits_for_an_answer_is_one_prompt(tmp_path: Path) -> None:
    loaded = load(tmp_path, [*good(9), {**chat("one", "two", "three"), "id": "open"}])
    found = [prompt for prompt in loaded.prompts if prompt.id == "open"]
    assert len(found) == 1 and len(found[0].messages) == 3 and found[0].recorded is None


def test_an_evaluation_conversation_gives_its_last_prompt_and_no_recorded_answer(tmp_path: Path) -> None:
    write(tmp_path / "evaluate" / "qa-eval.jsonl", [chat("a b", "c", "d e", "f")])
    (prompt,) = load(tmp_path, good(9)).split("evaluate")
    assert [m.content for m in prompt.messages] == ["a b", "c", "d e"] and prompt.recorded is None


def test_random_choice_does_not_depend_on_the_order_of_files_or_rows(tmp_path: Path) -> None:
    rows = [{**row, "id": f"id-{i}"} for i, row in enumerate(good(60))]
    chosen = []
    for name, order, seed in (("a", 1, 7), ("b", -1, 7), ("c", 1, 8)):
        loaded = load(tmp_path / name, rows[::order], choose="random", seed=seed, train_per_domain=20)
        chosen.append({(prompt.id, prompt.split) for prompt in loaded.prompts if prompt.split != "evaluate"})
    assert chosen[0] == chosen[1] != chosen[2] and len(chosen[0]) == 20
    assert {name for name, _ in chosen[0]} != {f"id-{i}" for i in range(20)}


def test_the_seed_moves_the_split(tmp_path: Path) -> None:
    held = [
        {prompt.id for prompt in load(tmp_path / str(seed), good(80), seed=seed).split("held_out")}
        for seed in (0, 0, 1)
    ]
    assert held[0] == held[1] != held[2]


def test_a_source_of_which_nothing_is_left_names_its_first_row(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nothing is left.*'qa-1'.*20 too long") as caught:
        load(tmp_path, good(20), max_chars=10)
    assert caught.value.where == "prompts.train" and "max_chars" in caught.value.hint


def test_counts_add_up(tmp_path: Path) -> None:
    rows = [*good(40), user("short"), user("x" * 500), good(3)[2], "{broken"]
    counts = load(tmp_path, rows, min_chars=6, max_chars=400).counts.train
    assert counts.rows == 44 and counts.bad == {"not a JSON object": 1}
    assert counts.dropped == {"too short": 1, "too long": 1, "duplicate": 1}
    assert counts.prompts == counts.conversations == 40
    assert counts.rows == counts.prompts + sum(counts.bad.values()) + sum(counts.dropped.values())
    assert (counts.turns.p50, counts.turns.max) == (1, 1)
    assert counts.chars.p50 <= counts.chars.p90 <= counts.chars.max <= 60


def test_a_profile_whose_lengths_exclude_each_other_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"prompts.max_chars \(3\) is below prompts.min_chars \(4\)"):
        profile_of(tmp_path, min_chars=4, max_chars=3)


def test_no_text_of_a_prompt_stands_in_reasons_and_errors(tmp_path: Path) -> None:
    secret = "zanzibar"
    bad = [
        {"messages": [{"role": secret, "content": secret}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": secret}, 3]}]},
        {"messages": [{"role": "user", "content": secret}] * 2},
        {"prompt": secret, "domain": f"/{secret}"},
        f'{{"prompt": "{secret}',
    ]
    loaded = load(tmp_path, [*good(12), *bad], max_bad_rows=0.5)
    assert len(loaded.skipped) == len(bad)
    assert secret not in " ".join(map(str, loaded.skipped))
    with pytest.raises(UsageError) as caught:
        load(tmp_path / "again", [*good(12), *bad])
    assert secret not in str(caught.value)
