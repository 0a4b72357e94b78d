"""Wiring and arithmetic of the train stage's rows, on captures of a tiny target."""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.stream.log import HiddenStateLog, LogWriter
from tests.unit.tasks.train.conftest import HIDDEN, TinyWorld, _capture, _make_target

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.append(str(BENCH))  # last: other folders of tests have modules of the same names

import step_recorder  # noqa: E402
import train_quality  # noqa: E402
import train_rows  # noqa: E402
from train_quality import Arm, Captured, QualitySize  # noqa: E402

DOMAINS = ("qa", "translation", "rag", "writing")


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Captured:
    """A tiny target's own answers in several domains."""
    root = tmp_path_factory.mktemp("quality")
    torch.set_num_threads(1)
    model, writer = _make_target(root / "target"), LogWriter(root / "log")
    random = torch.Generator().manual_seed(1)
    with torch.inference_mode():
        for i in range(32):
            _capture(model, writer, i, "held_out" if i >= 24 else "train", random, DOMAINS[i % 4])
    writer.close()
    settings = TinyWorld(root / "target", root / "log").settings(root / "train")
    return Captured(settings, root, QualitySize(epochs=1, seeds=(0, 1)))


def test_every_ablation_gives_a_row_with_both_seeds(captures: Captured) -> None:
    rows = train_quality.ablations(captures)
    names = [row.name for row in rows]
    assert len(names) == len(set(names)) == 7
    for row in rows:
        assert row.stage == "train" and "seed 0:" in row.conditions and "seed 1:" in row.conditions
        assert row.ratio == pytest.approx(row.value / row.baseline, abs=1e-3)
    decay = next(row for row in rows if "later positions" in row.name)
    assert "DSpark: 1:" in decay.conditions and "suffix decay" in decay.conditions
    # DFlash keeps its first slot for the known token, and drafts as many tokens.
    config = (captures.folder / "arms" / "dflash-0" / "draft" / "config.json").read_text(encoding="utf-8")
    assert '"sample_from_anchor": false' in config and '"block_size": 5' in config


@pytest.mark.parametrize(("mark", "steps"), [(1.2, 10), (1.4, 20), (9.0, 80.0)])
def test_a_warm_start_counts_the_steps_of_the_shortest_planned_training(
    monkeypatch: pytest.MonkeyPatch, captures: Captured, mark: float, steps: float
) -> None:
    """Trainings of 1, 2 and 4 epochs of ten steps; never reached counts twice the steps of the longest."""

    def planned(*_: object, epochs: int, **__: object) -> Arm:
        return Arm({}, [(0, 1.0), (10 * epochs, 1.0 + 0.25 * epochs)], captures.folder, 10 * epochs)

    monkeypatch.setattr(train_quality, "train_arm", planned)
    world = Captured(captures.settings, captures.folder, QualitySize(epochs=4))
    assert train_quality.shortest(world, 0, captures.log, captures.folder, mark) == steps


def test_domains_stand_in_for_days(captures: Captured, tmp_path: Path) -> None:
    world = Captured(captures.settings, tmp_path, captures.size)
    logs = [HiddenStateLog(folder) for folder in train_quality.split_by_domain(world)]
    domains = [{entry.domain for entry in log.entries("train")} for log in logs]
    assert domains == [{"qa", "rag"}, {"translation", "writing"}, set(DOMAINS)]
    old, new, mix = (log.entries("train") for log in logs)
    assert [len(old), len(new), len(mix)] == [12, 12, 12 + 12 // train_quality.OLD_SHARE]
    assert len(logs[2].entries("held_out")) == 8
    states, _ = logs[1].load(new[0])
    assert torch.equal(states, HiddenStateLog(world.log).load(new[0])[0]) and states.shape[2] == HIDDEN


def test_the_first_step_with_the_acceptance_counts() -> None:
    arm = Arm({"eal": 1.4}, [(0, 1.0), (10, 1.2), (20, 1.4), (30, 1.3)], Path(), 20)
    assert [arm.steps_to(eal) for eal in (0.9, 1.15, 1.2, 1.3, 1.5)] == [0, 10, 10, 20, None]


def test_curves_are_means_over_the_seeds_that_got_there() -> None:
    arms = [
        Arm({"conditional_1_acc": 0.5, "conditional_2_acc": 0.2}, [], Path(), 0),
        Arm({"conditional_1_acc": 0.7}, [], Path(), 0),
    ]
    assert train_quality._curve(arms) == {1: statistics.mean([0.5, 0.7]), 2: 0.2}
    assert [train_quality._later(arm) for arm in arms] == [0.2, 0.0]


def test_names_choose_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(train_rows, "make_train_world", lambda size, folder: "world")
    rows = lambda folder, measure: seen.append(measure.__name__) or []
    monkeypatch.setattr(train_rows.train_quality, "rows", rows)
    for name in train_rows.ON_WORLD:
        monkeypatch.setitem(train_rows.ON_WORLD, name, lambda world, name=name: seen.append(name) or [])
    train_rows.measure_train(["cost", "step"], tmp_path / "some")
    assert seen == ["step", "cost"]
    seen.clear()
    train_rows.measure_train(["quality", "warm"], tmp_path / "quality")
    train_rows.measure_train(["warm"], tmp_path / "warm")
    assert seen == ["ablations", "warm_rows"]
    seen.clear()
    train_rows.measure_train([], tmp_path / "all")
    assert seen == [*train_rows.ON_WORLD, "ablations"]


def test_a_name_of_another_stage_is_refused() -> None:
    command = [sys.executable, str(BENCH / "run.py"), "--stages", "stream", "--rows", "data_wait"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "rows of the stage train" in done.stderr


def test_the_recorder_keeps_what_a_step_needs(tmp_path: Path) -> None:
    """Upstream's batch without padding, with the anchors that it chose."""
    from train_upstream import recorded_steps

    recorder = step_recorder.Recorder(tmp_path / "steps.json", tmp_path)
    ids = torch.arange(8)[None]
    recorder._anchors = (torch.tensor([2, 5, 0]), torch.tensor([True, True, False]))
    batch = {
        "hidden_states": torch.randn(1, 8, 6),
        "verifier_last_hidden_states": torch.randn(1, 8, 3),
        "input_ids": ids,
        "loss_mask": torch.tensor([[0, 1, 1, 0, 1, 1, 0, 0]]),
        "document_ids": torch.tensor([[4, 4, 4, 9, 9, 9, -1, -1]]),
        "position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 0, 0]]),
    }
    recorder._keep(batch, torch.tensor(0.5))
    ((ours, anchors),) = recorded_steps(tmp_path, 1, torch.bfloat16)
    assert anchors.tolist() == [2, 5] and ours.document_ids.tolist() == [0, 0, 0, 1, 1, 1]
    assert ours.tokens == 6 and ours.loss_mask.tolist() == [False, True, True, False, True, True]
    assert ours.aux_states.dtype == torch.bfloat16
