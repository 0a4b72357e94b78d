"""Checkpoints are complete or absent."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tasks.errors import StageInputError
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
    assert not [path for path in checkpoints.folder.iterdir() if path.name.startswith(".")]


def test_checkpoint_of_another_configuration_is_refused_with_both_values(tmp_path: Path) -> None:
    save(Checkpoints(tmp_path, keep=2, configuration={"train.lr": 0.1, "target": "a"}), 3)
    other = Checkpoints(tmp_path, keep=2, configuration={"train.lr": 0.2, "target": "a"})
    with pytest.raises(StageInputError, match=r"step-3 .*: train.lr is 0.1 there and 0.2 here"):
        other.newest("other")


def test_everything_comes_back_in_its_type(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    optimizer = {"adamw/0/step": torch.tensor(3.0), "adamw/0/exp_avg": torch.randn(3)}
    random = {"torch": torch.get_rng_state()}
    position = Position("x", step=4, cuts=[1, 2], best_metrics={"eal": 1.5})
    checkpoints.save(position, tensors(1 / 3), optimizer, random)
    assert checkpoints.newest("x") == position
    for found, wanted in zip(checkpoints.tensors(4), (tensors(1 / 3), optimizer, random), strict=True):
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            assert found[name].dtype == value.dtype and torch.equal(found[name], value), name


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


def test_checkpoint_with_a_cut_or_missing_file_is_passed_over(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=4)
    for step in (1, 2, 3):
        save(checkpoints, step)
    data = next(checkpoints.path(3).glob("*.distcp"))
    data.write_bytes(data.read_bytes()[:-1])
    (checkpoints.path(2) / ".metadata").unlink()
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
