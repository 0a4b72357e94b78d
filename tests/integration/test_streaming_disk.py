"""A log on a disk that damages or runs out: noticed, named, and repaired without losing a whole sample."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from streaming_bench import Bench, content_digest, stage_folder

from tasks.errors import RetrainError, StageInputError
from tasks.run_folder import RunFolder
from tasks.stream.log import INDEX, HiddenStateLog, IndexEntry, read_index

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]
PROMPTS = 40
SMALL = "320k"
LARGE = "8m"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("bench"), PROMPTS)
    yield bench
    bench.close()


@pytest.fixture(scope="module")
def finished(bench: Bench) -> tuple[RunFolder, str]:
    run = bench.run("finished")
    bench.capture(run)
    return run, content_digest(run)


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def _first(run: RunFolder) -> tuple[Path, IndexEntry]:
    entry = read_index(stage_folder(run) / "log")[0]
    return stage_folder(run) / "log" / entry.file_name, entry


@pytest.mark.parametrize("damage", [_cut, _flip, Path.unlink], ids=["cut", "flipped", "gone"])
def test_damaged_file_is_named_by_its_reader(
    damage: Callable[[Path], None], finished: tuple[RunFolder, str], tmp_path: Path
) -> None:
    log = Path(shutil.copytree(stage_folder(finished[0]) / "log", tmp_path / "log"))
    entry = read_index(log)[0]
    damage(log / entry.file_name)
    with pytest.raises(StageInputError) as error:
        HiddenStateLog(log).load(entry)
    assert entry.file_name in str(error.value) and entry.prompt_id in str(error.value)


@pytest.mark.parametrize("damage", [_cut, Path.unlink], ids=["cut", "gone"])
def test_cut_file_is_captured_again_and_nothing_else(
    damage: Callable[[Path], None], bench: Bench, finished: tuple[RunFolder, str]
) -> None:
    run, expected = finished
    before = bench.capture(run)
    path, entry = _first(run)
    damage(path)
    after = bench.capture(run)
    assert after.counters.requests == before.counters.requests + 1
    assert after.samples == PROMPTS and content_digest(run) == expected
    assert read_index(stage_folder(run) / "log")[-1].i == entry.i


def test_torn_last_line_of_the_index_costs_one_sample(bench: Bench, finished: tuple[RunFolder, str]) -> None:
    run, expected = finished
    before = bench.capture(run)
    index = stage_folder(run) / "log" / INDEX
    os.truncate(index, index.stat().st_size - 20)
    after = bench.capture(run)
    assert after.counters.requests == before.counters.requests + 1
    assert content_digest(run) == expected


@contextmanager
def _small_disk(folder: Path) -> Iterator[None]:
    """A file system of a few hundred KiB at `folder`; skips where this user may not mount one."""
    folder.mkdir(parents=True)
    argv = ["mount", "-t", "tmpfs", "-o", f"size={SMALL},mode=0700", "tmpfs", str(folder)]
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"needs the right to mount a small disk (root): {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("mount"), reason="needs root, to mount a small disk"
)
def test_full_disk_stops_with_its_name_and_keeps_every_complete_sample(
    bench: Bench, finished: tuple[RunFolder, str]
) -> None:
    run = bench.run("full-disk")
    with _small_disk(stage_folder(run)):
        with pytest.raises(RetrainError, match=r"No space left|disk is full") as failed:
            bench.capture(run)
        assert "Traceback" not in str(failed.value)
        log = HiddenStateLog(stage_folder(run) / "log")
        kept = log.entries()
        assert 0 < len(kept) < PROMPTS
        for entry in kept:
            log.load(entry)
        assert bench.left_in_store(run) == 0
        subprocess.run(["mount", "-o", f"remount,size={LARGE}", str(stage_folder(run))], check=True)
        captures = bench.capture(run)
        assert captures.samples == PROMPTS and content_digest(run) == finished[1]
        assert log.entries()[: len(kept)] == kept
