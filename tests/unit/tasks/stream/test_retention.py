"""Retention `window`: what was consumed goes, the rest stays, and the budget holds at every instant."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tasks.errors import StageInputError
from tasks.stream.follower import LogFollower
from tasks.stream.log import HiddenStateLog, IndexEntry, LogWriter, read_index
from tasks.stream.retention import (
    CONSUMED,
    WindowTooSmall,
    WriteAborted,
    consumed,
    forget_consumed,
    mark_consumed,
    on_disk,
)

FLOATS = 4096
SAMPLE_BYTES = on_disk(4 * FLOATS + 400)
"""One sample of `add` on disk."""
ALLOWANCE = 80_000
"""Bookkeeping, index and rounding."""


def add(writer: LogWriter, i: int, split: str = "train", floats: int = FLOATS) -> IndexEntry:
    states = torch.full((2, 1, floats // 2), float(i))
    return writer.append(
        i=i, prompt_id=f"p-{i}", domain="qa", split=split,  # type: ignore[arg-type]
        prompt_tokens=1, answer_ids=(7, 8), finish_reason="stop",
        hidden_states=states, token_ids=torch.tensor([1, 7]),
    )  # fmt: skip


def window(samples: int) -> int:
    return samples * SAMPLE_BYTES + ALLOWANCE


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def bytes_in(folder: Path) -> int:
    total = 0
    for item in os.scandir(folder):
        try:
            total += os.stat(item.path).st_size
        except FileNotFoundError:
            continue
    return total


def test_marks_add_up_and_are_ranges(tmp_path: Path) -> None:
    assert consumed(tmp_path) == frozenset()
    mark_consumed(tmp_path, [3, 1, 2])
    before = (tmp_path / CONSUMED).stat().st_ino
    mark_consumed(tmp_path, [2, 3])
    assert (tmp_path / CONSUMED).stat().st_ino == before, "the same again is not written"
    mark_consumed(tmp_path, range(7, 9))
    assert consumed(tmp_path) == {1, 2, 3, 7, 8}
    assert (tmp_path / CONSUMED).read_text() == '{"ranges":[[1,3],[7,8]]}'
    forget_consumed(tmp_path)
    assert consumed(tmp_path) == frozenset()
    (tmp_path / CONSUMED).write_text("{")
    with pytest.raises(StageInputError, match="is damaged"):
        consumed(tmp_path)


def test_a_full_window_waits_until_a_checkpoint_consumed_something(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, window_bytes=window(3))
    add(writer, 0, split="held_out")
    for i in (1, 2):
        add(writer, i)
    follower = LogFollower(tmp_path)
    thread = threading.Thread(target=add, args=(writer, 3))
    thread.start()
    until(lambda: follower.writer_waits)
    mark_consumed(tmp_path, [0])  # held out: marked or not, it stays
    mark_consumed(tmp_path, [0, 1])
    thread.join(60)
    assert not thread.is_alive() and not follower.writer_waits and writer.waits == 1
    assert sorted(path.name for path in tmp_path.glob("hs_*")) == [
        "hs_0.safetensors",
        "hs_2.safetensors",
        "hs_3.safetensors",
    ]
    gone = follower.poll()[1]
    with pytest.raises(StageInputError, match=r"sample 1 \(p-1\) was deleted after a checkpoint"):
        HiddenStateLog(tmp_path).load(gone)
    assert gone.answer_ids == (7, 8)
    with pytest.raises(ValueError, match="already"):
        add(writer, 1)


def test_the_budget_holds_at_every_instant(tmp_path: Path) -> None:
    limit, total = window(6), 60
    writer = LogWriter(tmp_path, window_bytes=limit)
    for i in range(2):
        add(writer, i, split="evaluate")
    follower, peaks, seen, stop = LogFollower(tmp_path), [0], [], threading.Event()

    def watch() -> None:
        while not stop.is_set():
            peaks.append(bytes_in(tmp_path))

    def produce(first: int) -> None:
        for i in range(first, total, 4):
            add(writer, i, floats=FLOATS // (1 + i % 3) // 2 * 2)

    threads = [threading.Thread(target=produce, args=(2 + k,)) for k in range(4)]
    watcher = threading.Thread(target=watch)
    for thread in (*threads, watcher):
        thread.start()
    log = HiddenStateLog(tmp_path)
    while any(thread.is_alive() for thread in threads):
        new = follower.poll()
        for entry in new:
            states, _ = log.load(entry)
            assert float(states[1, 0, 0]) == entry.i
        seen += new
        mark_consumed(tmp_path, [entry.i for entry in seen])
    stop.set()
    watcher.join()
    seen += follower.poll()
    assert sorted(entry.i for entry in seen) == list(range(total))
    assert max(peaks) <= writer.peak_bytes <= limit and writer.waits > 0
    assert len(peaks) > 10 and max(peaks) > limit / 4
    assert (tmp_path / "hs_0.safetensors").exists() and (tmp_path / "hs_1.safetensors").exists()


def test_a_resume_captures_nothing_again_that_was_consumed_or_is_whole(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, window_bytes=window(3))
    for i in range(3):
        add(writer, i)
    mark_consumed(tmp_path, [0, 1])
    add(writer, 3)
    assert not (tmp_path / "hs_0.safetensors").exists() and (tmp_path / "hs_2.safetensors").exists()
    writer.close()
    (tmp_path / "hs_3.safetensors").unlink()  # what a power cut may do to a file that is not consumed
    again = LogWriter(tmp_path, window_bytes=window(3))
    assert list(again.entries) == [0, 1, 2] and len(again.repaired) == 1 and "sample 3" in again.repaired[0]
    for i in (3, 4):
        add(again, i)
    assert [entry.i for entry in read_index(tmp_path)] == [0, 1, 2, 3, 4]
    assert again.peak_bytes <= window(3)


def test_a_training_from_nothing_gets_everything_again(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, window_bytes=window(2))
    add(writer, 0)
    add(writer, 1)
    mark_consumed(tmp_path, [0])
    add(writer, 2)
    writer.close()
    forget_consumed(tmp_path)
    assert list(LogWriter(tmp_path, window_bytes=window(2)).entries) == [1, 2]


def test_a_sample_that_never_fits_is_refused_with_its_sizes(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, window_bytes=window(2))
    add(writer, 0, split="held_out")
    add(writer, 1)
    with pytest.raises(WindowTooSmall, match="sample 2") as info:
        add(writer, 2, floats=2 * FLOATS)
    assert f"{window(2):,}" in info.value.what and info.value.where == "stream.window_bytes"
    assert list(writer.entries) == [0, 1]


def test_waiting_ends_when_the_log_is_aborted(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, window_bytes=window(1))
    add(writer, 0)
    errors: list[BaseException] = []

    def blocked(i: int) -> None:
        try:
            add(writer, i)
        except WriteAborted as error:
            errors.append(error)

    threads = [threading.Thread(target=blocked, args=(i,)) for i in (1, 2)]
    for thread in threads:
        thread.start()
    until(lambda: writer.waits >= 1)
    writer.abort()
    for thread in threads:
        thread.join(60)
    assert len(errors) == 2 and not LogFollower(tmp_path).writer_waits
    assert list(LogWriter(tmp_path).entries) == [0] and not list(tmp_path.glob(".hs_*"))


def test_the_trainers_own_files_are_left_alone(tmp_path: Path) -> None:
    half = tmp_path / f".{CONSUMED}.1.tmp"
    half.write_text("the trainer is writing")
    (tmp_path / ".hs_1.tmp").write_text("a killed writer's")
    LogWriter(tmp_path)
    assert half.exists() and not (tmp_path / ".hs_1.tmp").exists()
