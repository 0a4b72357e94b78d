"""What a power cut, a kill and a full disk may do to a log: on real files, with real limits."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.stream.durable import LogWriteError, free_bytes
from tasks.stream.log import (
    END,
    INDEX,
    HiddenStateLog,
    LogWriter,
    WrittenSample,
    index_digest,
    read_index,
)

ROOT = Path(__file__).parents[4]
FLOATS = 16_384


def add(writer: LogWriter, i: int, floats: int = FLOATS) -> None:
    writer.append(
        i=i, prompt_id=f"p-{i}", domain="qa", split="train", prompt_tokens=1, answer_ids=(7, i),
        finish_reason="stop", hidden_states=torch.full((2, 1, floats // 2), float(i)),
        token_ids=torch.tensor([1, 7]),
    )  # fmt: skip


def add_many(writer: LogWriter, count: int) -> None:
    for i in range(count):
        add(writer, i)


def check(folder: Path, numbers: list[int]) -> None:
    """The log holds these samples, whole, and nothing else."""
    log = HiddenStateLog(folder)
    assert sorted(entry.i for entry in log.entries()) == numbers
    for entry in log.entries():
        states, ids = log.load(entry)
        assert (
            float(states[1, 0, -1]) == entry.i and ids.tolist() == [1, 7] and entry.answer_ids == (7, entry.i)
        )
    assert sorted(path.name for path in folder.glob("*hs_*")) == sorted(
        f"hs_{i}.safetensors" for i in numbers
    )


def test_nothing_is_named_before_it_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = LogWriter(tmp_path)
    steps: list[tuple[str, str]] = []

    def spy(name: str) -> None:
        real = getattr(os, name)

        def call(first: Any, *rest: Any, **named: Any) -> Any:
            result = real(first, *rest, **named)
            path = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else str(first)
            steps.append((name, Path(path).name))
            return result

        monkeypatch.setattr(os, name, call)

    for name in ("write", "fsync", "fdatasync", "replace"):
        spy(name)
    add(writer, 3)
    monkeypatch.undo()
    kept = [step for n, step in enumerate(steps) if n == 0 or step != steps[n - 1]]
    assert kept == [
        ("write", ".hs_3.tmp"),
        ("fsync", ".hs_3.tmp"),
        ("replace", ".hs_3.tmp"),
        ("write", "ids.u32"),
        ("fdatasync", "ids.u32"),
        ("fsync", tmp_path.name),
        ("write", "index.jsonl"),
        ("fdatasync", "index.jsonl"),
    ]


def test_samples_appended_at_once_share_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = LogWriter(tmp_path)
    threads = [threading.Thread(target=add, args=(writer, i)) for i in range(4)]
    syncs: list[int] = []
    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: (syncs.append(descriptor), real(descriptor))[1])
    with writer._commit._disk_lock:  # as if a commit were under way
        for thread in threads:
            thread.start()
        while len(writer._commit._queue) < len(threads):
            time.sleep(0.01)
    for thread in threads:
        thread.join(60)
    assert len(syncs) == 2, "once for the ids and once for the index"
    check(tmp_path, [0, 1, 2, 3])


def write(writer: LogWriter, i: int) -> WrittenSample:
    return writer.write(
        i=i, prompt_id=f"p-{i}", domain="qa", split="train", prompt_tokens=1, answer_ids=(7, i),
        finish_reason="stop", hidden_states=torch.full((2, 1, FLOATS // 2), float(i)),
        token_ids=torch.tensor([1, 7]),
    )  # fmt: skip


def test_a_written_sample_is_in_the_log_only_once_it_is_complete(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    written = [write(writer, i) for i in range(3)]
    assert read_index(tmp_path) == [] and not writer.entries
    with pytest.raises(ValueError, match="sample 1 is already in the log"):
        write(writer, 1)
    for one in reversed(written[1:]):
        assert writer.complete(one) == writer.entries[one.entry.i]
    writer.close()
    opened = LogWriter(tmp_path)
    check(tmp_path, [1, 2])  # what was not completed is gone, as after a kill
    add(opened, 0)
    check(tmp_path, [0, 1, 2])


def test_a_written_sample_does_not_need_its_tensors(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    buffer = torch.full((2, 1, 8), 5.0)
    written = writer.write(
        i=5, prompt_id="p-5", domain="qa", split="train", prompt_tokens=1, answer_ids=(7, 5),
        finish_reason="stop", hidden_states=buffer, token_ids=torch.tensor([1, 7]),
    )  # fmt: skip
    buffer.zero_()
    writer.complete(written)
    check(tmp_path, [5])


def test_a_disk_that_fails_at_the_sync_takes_nothing_and_gives_all_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = LogWriter(tmp_path, window_bytes=2**20)
    written, before = write(writer, 0), writer._space._used

    def refuse(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(LogWriteError, match=r"sample 0 \(p-0\) cannot be written: Input/output error"):
        writer.complete(written)
    monkeypatch.undo()
    assert writer._space._used < before and not list(tmp_path.glob("*hs_*"))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(written.descriptor)
    add(writer, 0)  # its number is free again
    check(tmp_path, [0])


KILLED = """
import os, sys, threading, torch
from pathlib import Path
from tasks.stream.log import LogWriter
writer = LogWriter(Path(sys.argv[1]))
def work(first):
    for i in range(first, 10**6, 3):
        writer.append(i=i, prompt_id=f"p-{i}", domain="qa", split="train", prompt_tokens=1, answer_ids=(7, i),
                      finish_reason="stop", hidden_states=torch.full((2, 1, 8192), float(i)),
                      token_ids=torch.tensor([1, 7]))
        os.write(1, b"%d\\n" % i)
for k in range(3):
    threading.Thread(target=work, args=(k,), daemon=True).start()
threading.Event().wait()
"""


@pytest.mark.parametrize("after", [1, 17])
def test_a_kill_loses_nothing_that_was_said_to_be_written(tmp_path: Path, after: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    assert process.stdout is not None
    said = [int(process.stdout.readline()) for _ in range(after)]
    process.kill()
    said += [int(line) for line in process.stdout.read().split("\n")[:-1]]
    process.wait()
    process.stdout.close()
    writer = LogWriter(tmp_path, check_all=True)
    assert set(said) <= writer.entries.keys() and not any("sample" in line for line in writer.repaired)
    check(tmp_path, sorted(writer.entries))
    add(writer, 10**6)
    check(tmp_path, sorted(writer.entries))


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[None]:
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    done = subprocess.run(["mount", *options], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_stops_with_its_sizes_and_a_resume_goes_on(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, 2**20):
        folder = disk / "log"
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(2**19))
        writer = LogWriter(folder)
        with pytest.raises(LogWriteError) as info:
            add_many(writer, 100)
        error, written = info.value, len(writer.entries)
        assert f"sample {written} (p-{written}) cannot be written: the disk is full" in error.what
        assert "bytes needed" in error.what and f"{free_bytes(folder):,} free" in error.what
        assert error.where == str(folder / f"hs_{written}.safetensors") and "resume" in error.hint
        assert 3 < written < 10
        check(folder, list(range(written)))
        writer.close()
        ballast.unlink()
        again = LogWriter(folder, check_all=True)
        assert again.repaired == [] and len(again.entries) == written
        for i in range(written, written + 4):
            add(again, i)
        check(folder, list(range(written + 4)))


def test_an_index_that_the_disk_does_not_take_stays_whole(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    for i in range(3):
        add(writer, i, floats=8)
    before = (tmp_path / INDEX).read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 40, hard))  # half of the next line fits
    try:
        with pytest.raises(LogWriteError, match=r"index .* limit on file sizes") as info:
            add(writer, 3, floats=8)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert info.value.where == str(tmp_path / INDEX)
    assert (tmp_path / INDEX).read_bytes() == before
    check(tmp_path, [0, 1, 2])
    add(writer, 3, floats=8)
    check(tmp_path, [0, 1, 2, 3])
    writer.close()
    again = LogWriter(tmp_path)
    assert again.repaired == [] and index_digest(again.entries.values()) == index_digest(read_index(tmp_path))


def test_the_end_marker_needs_the_disk_too(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, 2**16):
        writer = LogWriter(disk / "log")
        (disk / "ballast").write_bytes(bytes(free_bytes(disk)))
        with pytest.raises(LogWriteError, match="end marker"):
            writer.finish()
        assert not (disk / "log" / END).exists()
        (disk / "ballast").unlink()
        writer.finish()
        assert (disk / "log" / END).exists()
