"""Duplicates, near duplicates and splits: what stays does not depend on the order of the files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prompt_rows import chat, good, load, profile_of, user, write

from tasks.errors import UsageError
from tasks.prompts.load import load_prompts
from tasks.prompts.similarity import Index, grams


def story(number: int, end: str) -> str:
    return " ".join(f"s{number}w{i}" for i in range(30)) + f" {end}"


def ids(loaded: Any) -> set[str]:
    return {prompt.id for prompt in loaded.prompts if prompt.split != "evaluate"}


def test_of_near_duplicates_one_stays_whatever_the_order(tmp_path: Path) -> None:
    rows = [{**user(story(i // 3, f"end{i}")), "id": f"r{i}"} for i in range(60)]
    first = load(tmp_path / "a", rows)
    second = load(tmp_path / "b", rows[::-1])
    assert ids(first) == ids(second) and len(ids(first)) == 20
    assert first.counts.train.dropped == {"near duplicate": 40}
    assert {int(name[1:]) // 3 for name in ids(first)} == set(range(20))
    splits = [{prompt.id: prompt.split for prompt in one.prompts} for one in (first, second)]
    assert splits[0] == splits[1]


def test_at_one_only_exact_duplicates_go(tmp_path: Path) -> None:
    rows = [{**user(story(i // 3, f"end{i}")), "id": f"r{i}"} for i in range(60)]
    again = [{**row, "id": f"again-{row['id']}"} for row in rows[:5]]
    loaded = load(tmp_path, [*rows, *again], near_duplicate=1.0)
    assert loaded.counts.train.dropped == {"duplicate": 5} and len(ids(loaded)) == 60


def test_the_same_turns_under_another_system_turn_or_with_tools_are_no_duplicate(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "weather"}}
    rows = [
        {**chat("is it cold in Oslo", system="be kind"), "id": "system"},
        {**chat("is it cold in Oslo"), "id": "plain"},
        {**chat("is it cold in Oslo"), "tools": [tool], "id": "tools"},
    ]
    assert {"system", "plain", "tools"} <= ids(load(tmp_path, [*good(9), *rows], near_duplicate=1.0))


def test_of_equal_prompts_the_one_with_an_answer_stays(tmp_path: Path) -> None:
    rows = [{**user("what is it"), "id": "a-bare"}, {**chat("what is it", "it is that"), "id": "b-answered"}]
    for name, order in (("x", 1), ("y", -1)):
        found = ids(load(tmp_path / name, [*good(9), *rows[::order]]))
        assert "b-answered" in found and "a-bare" not in found


def test_a_common_start_of_two_conversations_is_asked_once(tmp_path: Path) -> None:
    rows = [
        {**chat("what is it", "this", f"and then {word}", "that"), "id": word} for word in ("rain", "snow")
    ]
    loaded = load(tmp_path, [*good(12), *rows])
    found = ids(loaded) - {f"qa-{i}" for i in range(20)}
    assert len(found) == 3 and sum(name.endswith(".t1") for name in found) == 1
    assert loaded.counts.train.dropped == {"duplicate": 1}


def test_what_is_alike_is_never_split(tmp_path: Path) -> None:
    """Chains: each text is like the next, the first is unlike the last."""
    rows = []
    for chain in range(40):
        for link in range(5):
            middle = " ".join(f"c{chain}w{i}" for i in range(link * 8, link * 8 + 40))
            rows.append({**user(middle), "id": f"{chain}-{link}"})
    loaded = load(tmp_path, rows, held_out=0.3)
    sides: dict[str, set[str]] = {}
    for prompt in loaded.prompts[:200]:
        sides.setdefault(prompt.id.split("-")[0], set()).add(prompt.split)
    assert all(len(side) == 1 for side in sides.values())
    held = [grams(prompt.text) for prompt in loaded.split("held_out")]
    index = Index(held)
    assert len(held) >= 20 and loaded.counts.leaks == 0
    assert not any(index.alike(grams(prompt.text), 0.5) for prompt in loaded.split("train"))


def test_a_set_of_prompts_that_are_all_alike_cannot_be_split(tmp_path: Path) -> None:
    rule = " ".join(f"rule{i}" for i in range(60))
    rows = [user(f"{rule} now classify item {i} of {i * 7}") for i in range(30)]
    with pytest.raises(UsageError, match="30 training conversations in 1 groups of similar ones") as caught:
        load(tmp_path, rows, near_duplicate=1.0)
    assert caught.value.where == "prompts.held_out"


def test_equal_evaluation_prompts_count_once(tmp_path: Path) -> None:
    write(tmp_path / "train" / "qa.jsonl", good(9))
    write(
        tmp_path / "evaluate" / "qa-eval.jsonl", [user("the same one"), user("the same one"), user("other")]
    )
    loaded = load_prompts(profile_of(tmp_path))
    assert len(loaded.split("evaluate")) == 2 and loaded.counts.evaluate.dropped == {"duplicate": 1}
