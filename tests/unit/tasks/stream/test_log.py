"""The hidden-state log keeps samples complete or absent, and says what it repairs."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tasks.errors import StageInputError
from tasks.stream.index import IDS
from tasks.stream.log import END, INDEX, HiddenStateLog, IndexEntry, LogWriter, index_digest, read_index
from tasks.stream.sample_file import sample_bytes


def add(writer: LogWriter, i: int, split: str = "train", tokens: int = 7, **changes: Any) -> IndexEntry:
    generator = torch.Generator().manual_seed(i)
    values: dict[str, Any] = {
        "i": i,
        "prompt_id": f"p-{i}",
        "domain": "qa",
        "split": split,
        "prompt_tokens": 4,
        "answer_ids": (*range(4, tokens), 90 + i),
        "finish_reason": "stop",
        "hidden_states": torch.randn(tokens, 3, 8, generator=generator),
        "token_ids": torch.arange(tokens),
    }
    return writer.append(**{**values, **changes})


def filled(folder: Path, count: int) -> list[IndexEntry]:
    writer = LogWriter(folder)
    entries = [add(writer, i) for i in range(count)]
    writer.close()
    return entries


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    entry = add(writer, 3)
    add(writer, 1, split="evaluate")
    log = HiddenStateLog(tmp_path)
    assert [e.i for e in log.entries()] == [3, 1]
    assert log.entries("train") == [entry]
    states, ids = log.load(entry)
    assert torch.equal(states, torch.randn(7, 3, 8, generator=torch.Generator().manual_seed(3)))
    assert ids.dtype == torch.int64 and ids.tolist() == list(range(7))
    assert entry.trainable_tokens == 3 and log.entries()[0].answer_ids == (4, 5, 6, 93)
    assert log.entries()[1].prompt_ids() == (0, 1, 2, 3) and log.entries()[1].answer_ids == (4, 5, 6, 91)


def test_words_that_all_samples_share_are_kept_once(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    words = [("".join(("q", "a")), "".join(("st", "op"))) for _ in range(2)]
    one, other = (add(writer, i, domain=a, finish_reason=b) for i, (a, b) in enumerate(words))
    assert one.domain is other.domain and one.finish_reason is other.finish_reason
    writer.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_files_are_what_safetensors_writes_and_reads(tmp_path: Path, dtype: torch.dtype) -> None:
    writer = LogWriter(tmp_path)
    # An odd number of bytes, and a view whose rows do not lie side by side.
    states = torch.randn(5, 3, 14).to(dtype)[:, :, ::2]
    entry = add(writer, 0, tokens=5, hidden_states=states)
    found = load_file(tmp_path / entry.file_name)
    assert torch.equal(found["hidden_states"], states) and found["token_ids"].tolist() == [0, 1, 2, 3, 4]
    again, _ = HiddenStateLog(tmp_path).load(entry)
    assert torch.equal(again, states) and again.dtype == dtype
    assert (tmp_path / entry.file_name).stat().st_size == entry.bytes == sample_bytes(*_pair(states)).size


def _pair(states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return states, torch.arange(len(states))


def test_a_contiguous_tensor_is_not_copied() -> None:
    states = torch.zeros(2, 1, 4)
    view = sample_bytes(*_pair(states)).parts[2]
    states[1, 0, 3] = 1.0
    assert bytes(view[-4:]) == b"\x00\x00\x80\x3f"


def test_other_types_and_shapes_are_refused(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    with pytest.raises(ValueError, match="uint8"):
        add(writer, 0, hidden_states=torch.zeros(7, 3, 8, dtype=torch.uint8))
    with pytest.raises(ValueError, match="no sample"):
        add(writer, 0, hidden_states=torch.zeros(6, 3, 8))
    add(writer, 0)
    assert list(writer.entries) == [0]


@pytest.mark.parametrize("tail", [b"[9,", b"[9,1]\n", b"\0" * 300, b"\0" * 30 + b"\n\xff\xfe\n\n"])
def test_a_torn_end_is_dropped_and_the_rest_kept(tmp_path: Path, tail: bytes) -> None:
    entries = filled(tmp_path, 2)
    with (tmp_path / INDEX).open("ab") as stream:
        stream.write(tail)
    (tmp_path / ".hs_9.tmp").write_bytes(b"half")
    (tmp_path / "hs_9.safetensors").write_bytes(b"a file without its line")
    with (tmp_path / IDS).open("ab") as stream:
        stream.write(b"ids that no line speaks of, and a part of one")
    assert HiddenStateLog(tmp_path).entries() == entries
    again = LogWriter(tmp_path)
    assert list(again.entries) == [0, 1] and f"{len(tail):,} bytes of a half-written end" in again.repaired[0]
    assert sorted(path.name for path in tmp_path.glob("*hs_*")) == ["hs_0.safetensors", "hs_1.safetensors"]
    third = add(again, 2)
    assert HiddenStateLog(tmp_path).entries() == [*entries, third]
    assert [entry.answer_ids[-1] for entry in read_index(tmp_path)] == [90, 91, 92]


def test_every_cut_of_the_index_leaves_whole_lines(tmp_path: Path) -> None:
    entries = filled(tmp_path / "whole", 3)
    data = (tmp_path / "whole" / INDEX).read_bytes()
    cut = tmp_path / "cut"
    cut.mkdir()
    for size in range(len(data)):
        (cut / INDEX).write_bytes(data[:size])
        assert read_index(cut) == entries[: data[:size].count(b"\n")]


def test_a_line_without_its_file_is_captured_again(tmp_path: Path) -> None:
    entries = filled(tmp_path, 3)
    (tmp_path / entries[1].file_name).unlink()
    with (tmp_path / entries[2].file_name).open("r+b") as stream:
        stream.truncate(100)
    with pytest.raises(StageInputError, match=r"sample 1 \(p-1\) cannot be read"):
        HiddenStateLog(tmp_path).load(entries[1])
    with pytest.raises(StageInputError, match=r"sample 2 \(p-2\) .* has 100 bytes, not"):
        HiddenStateLog(tmp_path).load(entries[2])
    again = LogWriter(tmp_path)
    assert list(again.entries) == [0]
    assert again.repaired == [
        "sample 1 (p-1) has no file and is captured again",
        f"sample 2 (p-2) has a file of 100 bytes instead of {entries[2].bytes:,} and is captured again",
    ]
    assert read_index(tmp_path) == entries[:1]
    add(again, 2)
    add(again, 1)
    assert index_digest(read_index(tmp_path)) == index_digest(entries)
    again.close()
    assert LogWriter(tmp_path).repaired == []


@pytest.mark.parametrize("place", [0, 12, 200, -1])
def test_a_flipped_bit_is_found_named_and_repaired(tmp_path: Path, place: int) -> None:
    entries = filled(tmp_path, 2)
    flip(tmp_path / entries[1].file_name, place)
    with pytest.raises(StageInputError, match=r"sample 1 \(p-1\) was changed") as info:
        HiddenStateLog(tmp_path).load(entries[1])
    assert entries[1].file_name in info.value.where
    again = LogWriter(tmp_path)
    assert again.repaired == ["sample 1 (p-1) has a file that was changed and is captured again"]
    add(again, 1)
    again.close()
    assert index_digest(read_index(tmp_path)) == index_digest(entries)
    HiddenStateLog(tmp_path).load(read_index(tmp_path)[1])


def test_a_finished_log_that_is_opened_again_is_read_through(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    entries = [add(writer, i) for i in range(3)]
    digest = writer.finish()
    writer.close()
    assert json.loads((tmp_path / END).read_text()) == {"samples": 3, "digest": digest}
    assert digest == index_digest(entries)
    flip(tmp_path / entries[0].file_name, -9)
    again = LogWriter(tmp_path)
    assert list(again.entries) == [1, 2] and not (tmp_path / END).exists()


def test_a_changed_answer_is_found(tmp_path: Path) -> None:
    entries = filled(tmp_path, 2)
    flip(tmp_path / IDS, -1)
    assert read_index(tmp_path)[0].answer_ids == entries[0].answer_ids
    with pytest.raises(StageInputError, match=r"answer of sample 1 \(p-1\) was changed"):
        _ = read_index(tmp_path)[1].answer_ids
    assert list(LogWriter(tmp_path, check_all=True).entries) == [0]


def test_lost_answers_are_captured_again(tmp_path: Path) -> None:
    filled(tmp_path, 2)
    with (tmp_path / IDS).open("r+b") as stream:
        stream.truncate(40)
    assert list(LogWriter(tmp_path).entries) == [0]


def test_damage_in_the_middle_is_an_error(tmp_path: Path) -> None:
    filled(tmp_path, 2)
    index = tmp_path / INDEX
    index.write_text(index.read_text().replace('"p-0"', "7"))
    with pytest.raises(StageInputError, match=r"line 1 .* is damaged"):
        HiddenStateLog(tmp_path).entries()
    with pytest.raises(StageInputError, match=r"line 1 .* is damaged"):
        LogWriter(tmp_path)


def test_a_log_of_the_older_format_is_named_as_such(tmp_path: Path) -> None:
    old = {"i": 0, "prompt_id": "p", "answer_ids": [1, 2], "sha256": "0" * 64}
    (tmp_path / INDEX).write_text(json.dumps(old) + "\n")
    with pytest.raises(StageInputError, match="older version") as info:
        HiddenStateLog(tmp_path).entries()
    assert "stage stream" in info.value.hint


def test_same_number_twice_is_refused(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    add(writer, 0)
    with pytest.raises(ValueError, match="already"):
        add(writer, 0)


def test_the_digest_tells_contents_but_not_order(tmp_path: Path) -> None:
    entries = filled(tmp_path / "a", 4)
    order = random.Random(1).sample(range(4), 4)
    assert order != sorted(order)
    writer = LogWriter(tmp_path / "b")
    shuffled = [add(writer, i) for i in order]
    assert index_digest(entries) == index_digest(shuffled) == index_digest(reversed(entries))
    assert index_digest(entries) != index_digest(entries[:3])
    other = LogWriter(tmp_path / "c")
    one = add(other, 0, hidden_states=torch.zeros(7, 3, 8))
    two = add(other, 1, answer_ids=(4, 5, 6, 0))
    assert index_digest([one]) != index_digest(entries[:1]) and index_digest([two]) != index_digest(
        entries[1:2]
    )


def test_an_entry_with_a_loss_on_its_prompt_keeps_its_answer(tmp_path: Path) -> None:
    entry = filled(tmp_path, 1)[0]
    assert replace(entry, prompt_tokens=1).answer_ids == entry.answer_ids
