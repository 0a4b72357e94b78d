"""Trainer and writer of one log as processes that are killed: no sample is trained twice, none is skipped."""

from __future__ import annotations

import multiprocessing as mp
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tasks.errors import EXIT_RESUMABLE
from tasks.stream.log import read_index
from tasks.train.journal import SAMPLES, samples_of_steps
from tasks.train.settings import TrainSettings
from tests.unit.tasks.train.arriving import TRAIN_ORDER, capture_again
from tests.unit.tasks.train.conftest import TinyWorld, one_thread, world
from tests.unit.tasks.train.test_growing import WINDOW, flat, growing, same_weights

__all__ = ["one_thread", "world"]
pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
KILLS = 3


def trainer(settings_json: str) -> None:
    """The trainer's process."""
    import torch

    from tasks.train.loop import StopFlag, Stopped
    from tasks.train.run import train_draft

    torch.set_num_threads(1)
    stop = StopFlag()
    stop.install()
    try:
        train_draft(TrainSettings.model_validate_json(settings_json), lambda *_: None, stop)
    except Stopped:
        sys.exit(EXIT_RESUMABLE)


@pytest.fixture(scope="module")
def fork() -> Any:
    """Starts processes that have imported torch already."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["tasks.train.run", "tasks.stream.log", "speculators.models.dspark"])
    return context


@dataclass
class Pair:
    """Writer and trainer of one log."""

    fork: Any
    world: TinyWorld
    root: Path
    window: int | None

    @property
    def log(self) -> Path:
        return self.root / "log"

    @property
    def stage(self) -> Path:
        return self.root / "stage"

    def start(self) -> dict[str, Any]:
        """Both, as the flow starts them: the trainer when the writer has put the log in order."""
        settings = growing(self.world, self.root, self.window, checkpoint_every_s=0.2, epochs=1)
        opened = self.root / "opened"
        opened.unlink(missing_ok=True)
        options = {"window_bytes": self.window, "pause_s": 0.02, "opened": opened}
        writer = self.fork.Process(target=capture_again, args=(self.world.log, self.log), kwargs=options)
        writer.start()
        wait_for(opened.exists)
        reader = self.fork.Process(target=trainer, args=(settings.model_dump_json(),))
        reader.start()
        return {"writer": writer, "trainer": reader}

    def progress(self) -> dict[str, int]:
        steps = self.stage / SAMPLES
        return {
            "writer": len(read_index(self.log)),
            "trainer": steps.read_bytes().count(b"\n") if steps.exists() else 0,
        }

    def disturb(self, victim: str, after: int, draw: random.Random) -> None:
        """Kill the victim when it has got so much further; what runs on is ended as the flow does it."""
        began = self.progress()
        both = self.start()
        one, other = both[victim], both["trainer" if victim == "writer" else "writer"]
        wait_for(
            lambda: (
                self.progress()[victim] >= began[victim] + after
                or one.exitcode is not None
                or (victim == "trainer" and self.progress()["trainer"] < began["trainer"])
            )
        )
        time.sleep(draw.random() * 0.05)
        one.kill()
        one.join()
        if victim == "writer":
            other.terminate()
            other.join()
            # One that was just starting has no handler of the signal yet, and nothing to save.
            assert other.exitcode in (0, EXIT_RESUMABLE, -signal.SIGTERM)
        else:
            other.kill()
            other.join()
            assert other.exitcode in (0, -signal.SIGKILL)
        if self.window is not None:
            assert sum(path.stat().st_size for path in self.log.iterdir()) <= self.window

    def finish(self) -> None:
        both = self.start()
        for one in both.values():
            one.join()
            assert one.exitcode == 0


def wait_for(condition: Callable[[], bool], deadline_s: float = 300) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "nothing went on"
        time.sleep(0.005)


@pytest.fixture(scope="module")
def undisturbed(
    fork: Any, world: TinyWorld, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int | None], Pair]:
    """The same run without kills, by window."""
    done: dict[int | None, Pair] = {}

    def run(window: int | None) -> Pair:
        if window not in done:
            done[window] = Pair(fork, world, tmp_path_factory.mktemp("undisturbed"), window)
            done[window].finish()
        return done[window]

    return run


def killed_and_resumed(pair: Pair, whole: Pair, seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(KILLS):
        pair.disturb(draw.choice(["writer", "trainer"]), draw.randrange(1, 6), draw)
    pair.finish()
    assert tuple(flat(pair.stage)) == TRAIN_ORDER
    assert samples_of_steps(pair.stage) == samples_of_steps(whole.stage)
    assert same_weights(pair.stage, whole.stage)


@pytest.mark.parametrize("seed", [0])
@pytest.mark.parametrize("window", [None, WINDOW], ids=["all", "window"])
def test_killed_processes_lose_and_repeat_no_sample(
    window: int | None, seed: int, fork: Any, world: TinyWorld, undisturbed: Any, tmp_path: Path
) -> None:
    killed_and_resumed(Pair(fork, world, tmp_path, window), undisturbed(window), seed)


@pytest.mark.verify("streaming")
@pytest.mark.parametrize("seed", range(1, 21))
def test_training_on_a_window_survives_kills(
    seed: int, fork: Any, world: TinyWorld, undisturbed: Any, tmp_path: Path
) -> None:
    """Trainer and writer of a window are killed at random points: each sample is trained exactly once"""
    killed_and_resumed(Pair(fork, world, tmp_path, WINDOW), undisturbed(WINDOW), seed)
