"""A log is followed while it grows."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import torch

from tasks.errors import StageInputError
from tasks.stream.follower import LogFollower
from tasks.stream.log import INDEX, IndexEntry, LogWriter, read_index


def add(writer: LogWriter, i: int) -> IndexEntry:
    return writer.append(
        i=i, prompt_id=f"p-{i}", domain="qa", split="train", prompt_tokens=2, answer_ids=(7, i),
        finish_reason="stop", hidden_states=torch.randn(3, 2, 4), token_ids=torch.tensor([1, 2, 7]),
    )  # fmt: skip


def test_each_sample_is_handed_out_once_in_order(tmp_path: Path) -> None:
    follower = LogFollower(tmp_path / "log")
    assert follower.poll() == [] and not follower.ended
    writer = LogWriter(tmp_path / "log")
    first, second = add(writer, 5), add(writer, 2)
    assert follower.poll() == [first, second] and follower.poll() == []
    third = add(writer, 9)
    assert follower.poll() == [third] and third.answer_ids == (7, 9)
    writer.finish()
    assert follower.ended and follower.poll() == [] and list(follower.entries) == [5, 2, 9]


def test_half_a_line_is_not_handed_out(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    entries = [add(writer, i) for i in range(3)]
    data = (tmp_path / INDEX).read_bytes()
    follower, seen = LogFollower(tmp_path), []
    for size in range(0, len(data) + 1, 7):
        (tmp_path / INDEX).write_bytes(data[:size])
        seen += follower.poll()
        assert seen == entries[: data[:size].count(b"\n")]
    (tmp_path / INDEX).write_bytes(data)
    assert [*seen, *follower.poll()] == entries


def test_several_threads_write_while_one_follows(tmp_path: Path) -> None:
    writer, follower = LogWriter(tmp_path), LogFollower(tmp_path)
    threads = [
        threading.Thread(target=lambda k=k: [add(writer, i) for i in range(k, 40, 4)]) for k in range(4)
    ]
    for thread in threads:
        thread.start()
    seen = []
    while any(thread.is_alive() for thread in threads):
        seen += follower.poll()
    seen += follower.poll()
    assert sorted(entry.i for entry in seen) == list(range(40)) and seen == read_index(tmp_path)
    assert all(entry.answer_ids == (7, entry.i) for entry in seen)


def test_a_repaired_sample_is_not_handed_out_twice(tmp_path: Path) -> None:
    writer, follower = LogWriter(tmp_path), LogFollower(tmp_path)
    first, second = add(writer, 0), add(writer, 1)
    assert follower.poll() == [first, second]
    writer.close()
    (tmp_path / first.file_name).unlink()
    again = LogWriter(tmp_path)
    assert follower.poll() == [] and list(follower.entries) == [1]
    renewed, third = add(again, 0), add(again, 2)
    assert follower.poll() == [third] and follower.entries[0] == renewed != first
    assert LogFollower(tmp_path).poll() == [second, renewed, third]


def test_lines_that_were_taken_back_are_forgotten(tmp_path: Path) -> None:
    writer, follower = LogWriter(tmp_path), LogFollower(tmp_path)
    first = add(writer, 0)
    size = os.stat(tmp_path / INDEX).st_size
    add(writer, 1)
    assert len(follower.poll()) == 2
    writer.close()
    os.truncate(tmp_path / INDEX, size)
    assert follower.poll() == [] and follower.entries == {0: first}


def test_damage_in_the_middle_is_named_with_its_line(tmp_path: Path) -> None:
    writer, follower = LogWriter(tmp_path), LogFollower(tmp_path)
    add(writer, 0)
    follower.poll()
    add(writer, 1)
    add(writer, 2)
    index = tmp_path / INDEX
    index.write_text(index.read_text().replace('[1,"p-1"', '[1,"p-1'))
    with pytest.raises(StageInputError, match="line 2 .* is damaged"):
        follower.poll()
