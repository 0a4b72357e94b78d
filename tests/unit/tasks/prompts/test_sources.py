"""Files as they come: packed, broken off, in another encoding, or as tables of a data set."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from datasets import Dataset, DatasetDict
from prompt_rows import chat, good, profile_of, user, write

from tasks.errors import UsageError
from tasks.prompts import sources
from tasks.prompts.load import PromptSet, load_prompts

LINES = "".join(json.dumps(row) + "\n" for row in good(400)).encode()


def zstd(data: bytes) -> bytes:
    return pa.compress(data, codec="zstd", asbytes=True)


PACKERS = {"plain": bytes, "gzip": gzip.compress, "zstd": zstd}


def put(folder: Path, name: str, data: bytes) -> Path:
    (folder / "train").mkdir(parents=True, exist_ok=True)
    path = folder / "train" / name
    path.write_bytes(data)
    return path


def read(folder: Path, **prompts: Any) -> PromptSet:
    return load_prompts(profile_of(folder, **prompts))


@pytest.mark.parametrize("packer", PACKERS)
def test_packed_files_give_the_same_prompts(packer: str, tmp_path: Path) -> None:
    """Written in two parts, as a log that was appended to; the suffix is not what tells."""
    pack = PACKERS[packer]
    half = LINES.index(b"\n", len(LINES) // 2) + 1
    path = put(tmp_path, "qa.jsonl", pack(LINES[:half]) + pack(LINES[half:]))
    loaded = read(tmp_path, train=(str(path),))
    assert len(loaded.prompts) == 401 and not loaded.skipped
    assert loaded.prompts[0].id == "qa-1" and loaded.prompts[0].domain == "qa"


def test_a_folder_takes_packed_files_and_names_domains_without_suffixes(tmp_path: Path) -> None:
    for name, data in (("a.jsonl.gz", gzip.compress), ("b.jsonl.zst", zstd), ("c.jsonl", bytes)):
        rows = "".join(json.dumps(row) + "\n" for row in good(6, name[0])).encode()
        put(tmp_path, name, data(rows))
    put(tmp_path, "notes.txt", b"not prompts")
    loaded = read(tmp_path)
    assert [prompt.domain for prompt in loaded.prompts[:18]] == ["a"] * 6 + ["b"] * 6 + ["c"] * 6


@pytest.mark.parametrize("packer", ["gzip", "zstd"])
def test_a_file_that_breaks_off_is_named_with_its_line_and_counted(packer: str, tmp_path: Path) -> None:
    lines = b"".join(json.dumps(user(f"{i * 7919} {i**3} {i**4}")).encode() + b"\n" for i in range(40000))
    packed = PACKERS[packer](lines)
    put(tmp_path, "qa.jsonl", packed[: len(packed) * 3 // 4])
    reading = list(sources.values_of(tmp_path / "train" / "qa.jsonl", "prompts.train"))
    number, reason = reading[-1]
    assert 20000 < number < 40000 and "damaged and ends here" in str(reason)
    assert [number for number, _ in reading] == list(range(1, number + 1))
    assert all(isinstance(value, dict) for _, value in reading[:-1])


def test_its_rows_count_against_the_limit(tmp_path: Path) -> None:
    packed = gzip.compress(LINES[: LINES.index(b"\n", 2000) + 1], 0)
    put(tmp_path, "qa.jsonl", packed[:-12])
    loaded = read(tmp_path, max_bad_rows=0.5)
    assert loaded.counts.train.bad == {"damaged file": 1}
    assert loaded.skipped[0].line == loaded.counts.train.rows
    with pytest.raises(UsageError, match=r"qa.jsonl:\d+: the file is damaged"):
        read(tmp_path, max_bad_rows=0.0)


@pytest.mark.parametrize(
    "data",
    [b"\x1f\x8bnot gzip at all", b"\x28\xb5\x2f\xfdnot zstd at all", "{}".encode("utf-16"), b"PAR1 no table"],
    ids=["gzip", "zstd", "utf-16", "parquet"],
)
def test_a_file_of_which_nothing_can_be_read_names_itself(data: bytes, tmp_path: Path) -> None:
    path = put(tmp_path, "qa.jsonl", data)
    with pytest.raises(UsageError, match="cannot be read") as caught:
        read(tmp_path)
    assert caught.value.where == "prompts.train" and str(path) in caught.value.what and caught.value.hint


def test_lines_in_another_encoding_are_skipped_with_their_place(tmp_path: Path) -> None:
    bad = json.dumps({"prompt": "façade"}, ensure_ascii=False).encode("latin-1")
    half = b'{"prompt": "\\ud83d alone"}'
    put(tmp_path, "qa.jsonl", b"\xef\xbb\xbf" + LINES + bad + b"\n" + half + b"\n")
    loaded = read(tmp_path)
    assert loaded.counts.train.bad == {"encoding": 2}
    assert [str(row) for row in loaded.skipped] == [
        "qa.jsonl:401: byte 15 of the line is not UTF-8",
        "qa.jsonl:402: it holds half a surrogate pair, which is no character",
    ]


def test_characters_that_end_lines_elsewhere_do_not_end_rows(tmp_path: Path) -> None:
    row = json.dumps({"prompt": "one\u2028two\x85three"}, ensure_ascii=False)
    put(tmp_path, "qa.jsonl", LINES.replace(b"\n", b"\r\n") + row.encode())
    assert read(tmp_path).prompts[400].messages[0].content == "one\u2028two\x85three"


def test_a_line_without_end_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_LINE_BYTES", 2**20)
    put(tmp_path, "qa.jsonl", LINES + b"[" + b"1," * 2**20 + b"\n" + json.dumps(user("the end")).encode())
    loaded = read(tmp_path)
    assert [str(row) for row in loaded.skipped] == ["qa.jsonl:401: the line is longer than 1 MiB"]
    assert loaded.prompts[400].id == "qa-402"


def test_nesting_without_end_is_one_bad_row(tmp_path: Path) -> None:
    put(tmp_path, "qa.jsonl", LINES + b"[" * 200_000)
    assert read(tmp_path).counts.train.bad == {"not a JSON object": 1}


def test_a_large_file_of_something_else_is_given_up_early(tmp_path: Path) -> None:
    path = put(tmp_path, "qa.jsonl", b"just text\n" * 5000)
    taken: list[int] = []
    with pytest.raises(UsageError, match="is not JSONL"):
        taken.extend(number for number, _ in sources.values_of(path, "prompts.train"))
    assert 0 < len(taken) < 1000


ROWS = [
    *good(10),
    {
        "id": "tools",
        "messages": [
            {"role": "user", "content": "Is it cold?"},
            {
                "role": "assistant",
                "tool_calls": [{"id": "c", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}],
            },
            {"role": "tool", "content": "-4", "tool_call_id": "c"},
            {"role": "assistant", "content": "Yes."},
        ],
        "tools": '[{"type": "function", "function": {"name": "weather"}}]',
        "image": b"\x00\x01",
    },
]


def data_set() -> Dataset:
    return Dataset.from_list(
        [{"id": f"r{i}", "tools": None, "image": None, **row} for i, row in enumerate(ROWS)]
    )


def test_data_sets_and_parquet_read_as_the_same_rows_in_jsonl(tmp_path: Path) -> None:
    data_set().save_to_disk(tmp_path / "folder", num_shards=3)
    data_set().to_parquet(tmp_path / "one.parquet")
    plain = [{"id": f"r{i}", **{k: v for k, v in row.items() if k != "image"}} for i, row in enumerate(ROWS)]
    write(tmp_path / "one.jsonl", [{**row, "domain": "one"} for row in plain])
    found = [
        load_prompts(profile_of(tmp_path, train=(str(tmp_path / name),)))
        for name in ("one.jsonl", "one.parquet", "folder")
    ]
    kept = [[(p.id, p.split, p.messages, p.tools, p.recorded) for p in one.prompts] for one in found]
    assert kept[0] == kept[1] == kept[2] and len(kept[0]) == 13
    assert [p.domain for p in found[2].prompts[:2]] == ["folder", "folder"]


def test_a_data_set_with_splits_asks_for_one(tmp_path: Path) -> None:
    DatasetDict({"test": data_set(), "train": data_set()}).save_to_disk(tmp_path / "both")
    with pytest.raises(UsageError, match="in 2 splits") as caught:
        load_prompts(profile_of(tmp_path, train=(str(tmp_path / "both"),)))
    assert str(tmp_path / "both" / "train") in caught.value.hint
    load_prompts(profile_of(tmp_path, train=(str(tmp_path / "both" / "train"),)))


def test_a_data_set_with_a_missing_or_cut_file_names_itself(tmp_path: Path) -> None:
    data_set().save_to_disk(tmp_path / "folder")
    (arrow,) = (tmp_path / "folder").glob("*.arrow")
    arrow.write_bytes(arrow.read_bytes()[:200])
    with pytest.raises(UsageError, match=r"the data set .* cannot be read after row 0"):
        load_prompts(profile_of(tmp_path, train=(str(tmp_path / "folder"),)))
    arrow.unlink()
    with pytest.raises(UsageError, match=r"the data set .* cannot be read after row 0"):
        load_prompts(profile_of(tmp_path, train=(str(tmp_path / "folder"),)))


def test_a_conversation_in_a_table_gives_its_samples(tmp_path: Path) -> None:
    rows = [chat(f"question {i} of {i}", f"answer {i}", f"more {i}", f"last {i}") for i in range(8)]
    Dataset.from_list(rows).to_parquet(tmp_path / "talk.parquet")
    loaded = load_prompts(profile_of(tmp_path, train=(str(tmp_path / "talk.parquet"),)))
    assert [prompt.id for prompt in loaded.prompts[:3]] == ["talk-1.t1", "talk-1.t2", "talk-2.t1"]
