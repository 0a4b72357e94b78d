"""Reading ahead: the same batches in the same order, in bounded memory, errors where they belong."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.errors import StageInputError
from tasks.stream.log import HiddenStateLog
from tasks.train.checkpoint import Checkpoints, Position
from tasks.train.data import CaptureReader, TrainBatches
from tasks.train.prefetch import Prefetch
from tasks.train.run import train_draft
from tests.unit.tasks.train.conftest import HIDDEN, TinyWorld


class Source:
    """Makes batches and remembers which; a batch can be held back."""

    def __init__(self) -> None:
        self.made: list[int] = []
        self.threads: set[str] = set()
        self.held: dict[int, threading.Event] = {}

    def __call__(self, key: int) -> str:
        self.threads.add(threading.current_thread().name)
        if key in self.held:
            assert self.held[key].wait(30)
        self.made.append(key)
        return f"batch {key}"


def settled(ahead: Prefetch[int, str]) -> None:
    for coming in ahead._coming.values():
        coming.result()


def test_batches_come_in_the_callers_order_whatever_is_ready() -> None:
    source = Source()
    ahead = Prefetch(source, lambda _: 1, budget_bytes=3)
    assert [ahead.take(k, range(k + 1, 10)) for k in range(10)] == [f"batch {k}" for k in range(10)]
    assert source.made == list(range(10)), "each is read once"
    ahead.close()


def test_no_more_is_read_ahead_than_fits() -> None:
    source = Source()
    ahead = Prefetch(source, lambda key: 10 * key, budget_bytes=90)
    ahead.take(1, range(2, 10))  # 20 + 30 + 40 = 90
    settled(ahead)
    assert source.made == [1, 2, 3, 4]
    ahead.take(2, range(3, 10))  # 30 + 40 = 70, and 50 does not fit
    settled(ahead)
    assert source.made == [1, 2, 3, 4]
    ahead.close()


def test_one_batch_is_read_ahead_whatever_its_size() -> None:
    source = Source()
    ahead = Prefetch(source, lambda _: 1000, budget_bytes=1)
    ahead.take(0, [1, 2])
    settled(ahead)
    assert source.made == [0, 1]
    ahead.close()


def test_without_a_budget_nothing_is_read_ahead_and_no_thread_is_started() -> None:
    source = Source()
    ahead = Prefetch(source, lambda _: 1, budget_bytes=0)
    ahead.take(0, [1, 2])
    assert source.made == [0] and source.threads == {threading.current_thread().name}


def test_reading_goes_on_while_the_caller_computes_and_waiting_is_measured() -> None:
    source = Source()
    source.held[1] = threading.Event()
    ahead = Prefetch(source, lambda _: 1, budget_bytes=5)
    ahead.take(0, [1, 2])
    before = ahead.waited_s

    def let_go() -> None:
        while 1 in ahead._coming:  # until it is asked for
            time.sleep(0.001)
        time.sleep(0.05)
        source.held[1].set()

    threading.Thread(target=let_go).start()
    assert ahead.take(1, [2]) == "batch 1"
    assert ahead.waited_s - before >= 0.05, "the caller was kept waiting"
    settled(ahead)
    assert ahead.take(2, []) == "batch 2"
    assert source.threads == {threading.current_thread().name, "read-ahead_0"}
    ahead.close()


def test_a_caller_that_goes_elsewhere_gets_what_it_asks_for() -> None:
    """As after a resume: what was read ahead is forgotten."""
    source = Source()
    ahead = Prefetch(source, lambda _: 1, budget_bytes=4)
    ahead.take(0, [1, 2, 3])
    assert ahead.take(7, [8, 9]) == "batch 7"
    settled(ahead)
    assert set(ahead._coming) == {8, 9}
    ahead.close()
    assert ahead.take(8, []) == "batch 8", "closed, it still answers"


def test_an_error_comes_with_its_batch_not_before() -> None:
    def make(key: int) -> str:
        if key == 2:
            raise StageInputError(f"sample {key} is damaged", where="log")
        return f"batch {key}"

    ahead = Prefetch(make, lambda _: 1, budget_bytes=9)
    assert ahead.take(0, [1, 2]) == "batch 0"
    assert ahead.take(1, [2]) == "batch 1"
    with pytest.raises(StageInputError, match="sample 2 is damaged"):
        ahead.take(2, [])
    ahead.close()


def batches(world: TinyWorld, prefetch_bytes: int, cache_bytes: int = 0) -> TrainBatches:
    log = HiddenStateLog(world.log)
    reader = CaptureReader(log, 3, HIDDEN, torch.float32, cache_bytes)
    return TrainBatches(reader, log.entries("train"), 64, 0, 3, 1, prefetch_bytes)


@pytest.mark.parametrize("prefetch_bytes", [1, 40_000, 1 << 30])
def test_epochs_are_the_same_with_and_without(world: TinyWorld, prefetch_bytes: int) -> None:
    plain, ahead = batches(world, 0), batches(world, prefetch_bytes, cache_bytes=60_000)
    for epoch in range(3):
        for step in range(plain.steps(epoch)):
            place = Position("", epoch=epoch, step_in_epoch=step)
            one, other = plain.take(place).batch, ahead.take(place).batch
            for name in ("token_ids", "aux_states", "last_states", "loss_mask", "document_ids"):
                assert torch.equal(getattr(one, name), getattr(other, name)), name
    assert ahead.waited_s > 0


def test_training_is_the_same_with_and_without(
    world: TinyWorld, tmp_path: Path, quiet: Any, never: Any
) -> None:
    weights = []
    for amount in (0, 1 << 20):
        folder = tmp_path / str(amount)
        folder.mkdir()
        train_draft(world.settings(folder, prefetch_bytes=amount), quiet, never)
        kept = Checkpoints(folder, 2)
        weights.append(kept.tensors(kept.steps()[0])[0])
    for name, value in weights[0].items():
        assert torch.equal(value, weights[1][name]), name


@pytest.mark.parametrize("prefetch_bytes", [0, 1 << 20])
def test_a_torn_capture_stops_training_and_is_named(
    world: TinyWorld, tmp_path: Path, quiet: Any, never: Any, prefetch_bytes: int
) -> None:
    """Cut short after the first look at the samples, as by a failing disk."""
    import shutil

    log = Path(shutil.copytree(world.log, tmp_path / "log"))
    settings = world.settings(tmp_path, prefetch_bytes=prefetch_bytes).model_copy(
        update={"log_dir": str(log), "cache_bytes": 0}
    )
    entry = HiddenStateLog(log).entries("train")[7]

    def tear(*_: Any) -> None:
        path = log / entry.file_name
        path.write_bytes(path.read_bytes()[:-100])

    with pytest.raises(StageInputError, match=rf"sample {entry.i} \({entry.prompt_id}\) was changed"):
        train_draft(settings, _once(tear), never)


def _once(action: Any) -> Any:
    """A report that acts on its first call."""
    left = [action]

    def report(*_: Any) -> None:
        if left:
            left.pop()()

    return report
