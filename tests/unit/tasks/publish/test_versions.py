"""Versions appear whole or not at all, get different numbers, and pointers move last."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest
from drafts import profile, publish_inputs

from tasks.errors import PublishError
from tasks.publish import core, versions
from tasks.publish.core import publish
from tasks.publish.versions import add_version, find_incumbent, promote, read_pointer


def build_slowly(place: Path, started: Path) -> None:
    def build(folder: Path, version: str) -> None:
        (folder / "half.txt").write_text("half")
        started.write_text("now")
        time.sleep(60)

    add_version(place, build)


def publish_one(root: Path, run_id: str) -> None:
    core.promote = lambda place, version: None  # numbers only: the gate is tested elsewhere
    publish(**publish_inputs(root, run_id))


def test_killed_half_way_nothing_is_visible_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    place = tmp_path / "runs" / "published" / "tiny"
    started = tmp_path / "started"
    child = multiprocessing.get_context("fork").Process(target=build_slowly, args=(place, started))
    child.start()
    deadline = time.monotonic() + 300
    while not started.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(child.pid or 0, signal.SIGKILL)
    child.join()
    assert versions.versions(place) == []
    assert [p.name for p in place.iterdir() if not p.name.startswith(".")] == []
    assert publish(**publish_inputs(tmp_path)).revision == "v0001"
    assert not list(place.glob(".staging-*"))


def test_concurrent_publications_get_different_numbers(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=publish_one, args=(tmp_path, f"run{n}")) for n in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    place = tmp_path / "runs" / "published" / "tiny"
    assert versions.versions(place) == ["v0001", "v0002", "v0003", "v0004"]
    assert [child.exitcode for child in children] == [0, 0, 0, 0]


def test_what_is_not_whole_does_not_appear(tmp_path: Path) -> None:
    with pytest.raises(PublishError, match="not whole"):
        add_version(tmp_path / "d", lambda folder, version: None)
    assert versions.versions(tmp_path / "d") == []


def test_numbers_go_on_after_the_highest(tmp_path: Path) -> None:
    place = tmp_path / "runs" / "published" / "tiny"
    (place / "v0007").mkdir(parents=True)
    (place / "v10000").mkdir()
    (place / "notes").mkdir()
    assert publish(**publish_inputs(tmp_path)).revision == "v10001"


def test_promote_moves_both_pointers_and_is_repeatable(tmp_path: Path) -> None:
    promote(tmp_path, "v0001")
    promote(tmp_path, "v0002")
    promote(tmp_path, "v0002")
    assert (read_pointer(tmp_path, "champion"), read_pointer(tmp_path, "previous")) == ("v0002", "v0001")


def test_a_champion_that_is_gone_or_damaged_or_badly_named_is_told(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    folder = Path(publish(**publish_inputs(tmp_path)).location)
    (folder / "README.md").write_text("changed")
    with pytest.raises(PublishError, match=r"README.md was changed"):
        find_incumbent(profile(), root)
    promote(folder.parent, "v0009")
    with pytest.raises(PublishError, match="v0009 is not there"):
        find_incumbent(profile(), root)
    (folder.parent / "champion").write_text("../../etc\n")
    with pytest.raises(PublishError, match="is not a version"):
        find_incumbent(profile(), root)
