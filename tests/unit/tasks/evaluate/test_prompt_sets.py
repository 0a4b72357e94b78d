"""Public prompt sets: their forms, where they come from, and what is said of them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from small_hub import COMMIT, repository, running_hub

from profiles.load import load_profile
from profiles.overlays import FULL, overlay_values
from tasks.errors import ServiceError, UsageError
from tasks.evaluate.prompt_sets import files_of_set, set_notes
from tasks.evaluate.prompt_sets_rows import PLACEHOLDER
from tasks.prompts.load import load_prompts


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return tmp_path / "cache"


def rows_of(source: str) -> list[dict[str, object]]:
    lines = [line for path in files_of_set(source, "prompts.evaluate") for line in path.open()]
    return [json.loads(line) for line in lines]


def speed_parquet(folder: Path, texts: list[str]) -> None:
    rows = [
        {"question_id": f"q{i}", "category": "multi lingual", "turns": [text, "and then?"]}
        for i, text in enumerate(texts)
    ]
    (folder / "qualitative").mkdir(parents=True)
    parquet.write_table(pa.Table.from_pylist(rows), folder / "qualitative/test-00000-of-00001.parquet")


def test_speed_bench_gives_first_turns_by_category_and_leaves_placeholders_out(tmp_path: Path) -> None:
    speed_parquet(tmp_path / "copy", ["Translate this.", f"{PLACEHOLDER} USING SPECDEC_BENCH"])
    source = f"set:speed_bench@{tmp_path / 'copy'}"
    assert rows_of(source) == [
        {
            "id": "speed-q0",
            "domain": "speed_multi_lingual",
            "messages": [{"role": "user", "content": "Translate this."}],
        }
    ]
    (note,) = set_notes([source, "package:prompts/evaluate"])
    assert "1 rows, 1 placeholders left out" in note and "local copy" in note


def test_only_placeholders_are_refused_with_what_to_do(tmp_path: Path) -> None:
    speed_parquet(tmp_path / "copy", [PLACEHOLDER])
    with pytest.raises(UsageError, match="every row of speed_bench is a placeholder") as told:
        rows_of(f"set:speed_bench@{tmp_path / 'copy'}")
    assert "preparation program" in told.value.hint


def test_the_prepared_form_of_speed_bench_is_read_too(tmp_path: Path) -> None:
    row = {"question_id": "a", "category": "qa", "messages": [{"role": "user", "content": "Why?"}]}
    (tmp_path / "throughput_1k.jsonl").write_text(json.dumps(row) + "\n")
    assert rows_of(f"set:speed_bench/throughput_1k@{tmp_path}")[0]["domain"] == "speed_qa"
    with pytest.raises(UsageError, match="has no file of speed_bench"):
        rows_of(f"set:speed_bench@{tmp_path}")


def test_longbench_asks_about_its_context_and_its_length_is_the_domain(tmp_path: Path) -> None:
    row = {
        "_id": "66", "domain": "Code", "length": "medium", "question": "Which?", "context": "A long text.",
        "choice_A": "one", "choice_B": "two", "choice_C": "three", "choice_D": "four", "answer": "B",
    }  # fmt: skip
    (tmp_path / "data.json").write_text(json.dumps([row]))
    (made,) = rows_of(f"set:longbench_v2@{tmp_path}")
    assert (made["id"], made["domain"]) == ("longbench-66", "longbench_medium")
    text = str(made["messages"])
    assert "A long text." in text and "(D) four" in text and "answer" not in text


def test_speculator_benchmarks_come_from_the_hub_with_their_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {f"{name}.jsonl": b'{"prompt": "What?"}\n' for name in ("qa", "rag")} | {"README.md": b"text"}
    repository(tmp_path / "hub", "datasets", "RedHatAI/speculator_benchmarks", files)
    with running_hub(tmp_path / "hub") as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        assert {row["domain"] for row in rows_of("set:speculator_benchmarks")} == {"spec_qa", "spec_rag"}
        assert {row["domain"] for row in rows_of("set:speculator_benchmarks/qa")} == {"spec_qa"}
        (note,) = set_notes(["set:speculator_benchmarks"])
    assert f"RedHatAI/speculator_benchmarks at revision {COMMIT}; 2 rows" in note


def test_a_hub_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ServiceError, match=r"zai-org/LongBench-v2.*cannot be reached") as told:
        rows_of("set:longbench_v2")
    assert "prompts.evaluate: set:longbench_v2" in told.value.where


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("set:nothing", "there is no prompt set 'nothing'"),
        ("set:speed_bench/../x", "cannot be a part"),
        ("set:speed_bench@/does/not/exist", "there is no folder"),
    ],
)
def test_bad_sources_are_refused(source: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        files_of_set(source, "prompts.evaluate")


def test_a_damaged_set_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.json").write_text('[{"_id": 1}]')
    with pytest.raises(UsageError, match="cannot be read as such a set: KeyError: 'length'"):
        rows_of(f"set:longbench_v2@{tmp_path}")


def test_the_laptops_full_overlay_has_stand_ins_of_every_set_and_nothing_to_train() -> None:
    values = overlay_values(FULL, "laptop")
    values["prompts"]["train"] = []
    profile = load_profile("laptop", values).profile
    prompts = load_prompts(profile)
    domains = {prompt.domain for prompt in prompts.prompts}
    assert {"qa", "spec_HumanEval", "speed_coding", "longbench_long"} <= domains
    assert {prompt.split for prompt in prompts.prompts} == {"evaluate"}
    assert profile.evaluate.load.concurrency == (1, 4)


def test_any_other_profile_gets_the_general_overlay() -> None:
    values = overlay_values(FULL, "h200-qwen3-8b")
    assert "set:longbench_v2" in values["prompts"]["evaluate"]
    assert load_profile("h200-qwen3-8b", values).profile.evaluate.load.concurrency == (1, 2, 4, 8, 16)
