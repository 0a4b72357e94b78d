"""Checkpoints written beside training: a copy of the moment, in order, and never a silent failure."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tasks.errors import JobError
from tasks.train import checkpoint
from tasks.train.checkpoint import Checkpoints, Position
from tasks.train.saving import Saver, State


def state(value: torch.Tensor) -> State:
    return State({"a": value}, {"adamw/0/exp_avg": value}, {"torch": torch.get_rng_state()})


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Writes wait until it is set."""
    opened, real = threading.Event(), checkpoint.sync_folder

    def wait(folder: Path) -> None:
        assert opened.wait(60)
        real(folder)

    monkeypatch.setattr(checkpoint, "sync_folder", wait)
    return opened


def test_training_goes_on_while_the_state_of_that_moment_is_written(
    tmp_path: Path, gate: threading.Event
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    saver, weight = Saver(checkpoints), torch.ones(4)
    saver.save(Position("x", step=1), state(weight))
    weight.add_(1)  # the next step
    assert saver.is_busy and saver.complete() == [] and checkpoints.steps() == []
    gate.set()
    saver.wait()
    assert [position.step for position in saver.complete()] == [1] and saver.complete() == []
    assert checkpoints.tensors(1)[0]["a"].tolist() == [1.0] * 4
    saver.save(Position("x", step=2), state(weight))
    saver.wait()
    assert checkpoints.tensors(2)[0]["a"].tolist() == [2.0] * 4


def test_a_training_that_is_over_keeps_no_state(tmp_path: Path) -> None:
    """Several trainings in one process, as in the benchmark: each left gigabytes behind."""
    saver = Saver(Checkpoints(tmp_path, keep=2))
    kept = weakref.ref(saver)
    saver.save(Position("x", step=1), state(torch.ones(4)))
    saver.wait()
    threads = [one for one in threading.enumerate() if one.name == "checkpoints"]
    for thread in threads:
        thread.join(60)
    del saver
    gc.collect()
    assert kept() is None


def test_best_weights_are_on_disk_before_a_checkpoint_that_counts_on_them(
    tmp_path: Path, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    saver, order = Saver(checkpoints), list[str]()
    publish: Callable[..., None] = checkpoint._publish

    def note(temporary: Path, final: Path, values: dict[str, object]) -> None:
        publish(temporary, final, values)
        order.append(final.name)

    monkeypatch.setattr(checkpoint, "_publish", note)
    saver.save_best(Position("x", step=4), {"a": torch.ones(1)})
    gate.set()
    saver.save(Position("x", step=4, best_step=4), state(torch.ones(1)))
    saver.wait()
    assert order == ["best", "step-4"]


def test_failed_write_is_told_and_nothing_later_hides_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    saver = Saver(checkpoints)

    def full(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "sync_folder", full)
    saver.save(Position("x", step=7), state(torch.ones(1)))
    with pytest.raises(JobError, match=r"checkpoint of step 7 could not be written: OSError.*No space left"):
        saver.wait()
    monkeypatch.undo()
    with pytest.raises(JobError, match="step 7"):
        saver.save(Position("x", step=8), state(torch.ones(1)))
    with pytest.raises(JobError, match="step 7"):
        saver.complete()
    assert checkpoints.steps() == []
