"""Checkpoints are complete or absent."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tasks.train.checkpoint import Checkpoints, Position


def tensors(value: float) -> dict[str, torch.Tensor]:
    return {"a": torch.full((3,), value)}


def save(checkpoints: Checkpoints, step: int, identity: str = "x") -> None:
    checkpoints.save(Position(identity, step=step), tensors(step), tensors(step), tensors(step))


def test_newest_of_the_same_configuration_is_found_and_old_ones_go(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (9, 10, 11):
        save(checkpoints, step)
    assert checkpoints.steps() == [11, 10]
    found = checkpoints.newest("x")
    assert found is not None and found.step == 11
    assert checkpoints.tensors(11)[0]["a"].tolist() == [11.0] * 3
    assert checkpoints.newest("other") is None


def test_interrupted_save_leaves_the_older_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    save(checkpoints, 1)

    def broken(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("tasks.train.checkpoint.sync_folder", broken)
    with pytest.raises(OSError, match="no space"):
        save(checkpoints, 2)
    again = Checkpoints(tmp_path, keep=2)
    assert again.steps() == [1]
    assert not list(again.folder.glob(".*"))


def test_folder_without_its_state_is_no_checkpoint(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    save(checkpoints, 1)
    save(checkpoints, 2)
    (checkpoints.folder / "step-2" / "state.json").write_text("{", encoding="utf-8")
    found = checkpoints.newest("x")
    assert found is not None and found.step == 1


def test_best_is_replaced_as_a_whole(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    assert checkpoints.best() is None
    checkpoints.save_best(Position("x", step=1, best_eal=1.1), tensors(1))
    checkpoints.save_best(Position("x", step=2, best_eal=1.2), tensors(2))
    best = checkpoints.best()
    assert best is not None
    assert best[0].best_eal == 1.2 and best[1]["a"].tolist() == [2.0] * 3


def test_crash_between_the_renames_of_a_replacement_keeps_the_old_best(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save_best(Position("x", step=1), tensors(1))
    (checkpoints.folder / "best").rename(checkpoints.folder / ".best.old")
    best = Checkpoints(tmp_path, keep=1).best()
    assert best is not None and best[0].step == 1
