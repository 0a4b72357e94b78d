"""`kill -9` of each part of a capture and of the trainer at random moments, twenty times each."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from streaming_bench import Bench
from streaming_kills import VICTIMS, killed_and_resumed, undisturbed
from trainer_kills import killed_and_trained, trained

from tests.unit.tasks.train.conftest import TinyWorld, one_thread, world

__all__ = ["one_thread", "world"]
pytestmark = [pytest.mark.verify("streaming"), pytest.mark.timeout(3600)]
SEEDS_ENV = "RETRAIN_DSPARK_SEEDS"
EPOCHS = 6


def seeds() -> list[int]:
    """Twenty, or those that the environment names, separated by commas, e.g. to repeat one."""
    return [int(word) for word in os.environ.get(SEEDS_ENV, ",".join(map(str, range(20)))).split(",")]


def for_each_seed(work: Callable[[int], None], record_property: Callable[[str, Any], None]) -> None:
    """Do the work for each seed; an error names its seed."""
    began = time.monotonic()
    for number, seed in enumerate(seeds()):
        record_property("seeds", number)
        try:
            work(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed} ({SEEDS_ENV}={seed} repeats it): {error}") from error
    record_property("seeds", len(seeds()))
    record_property("seconds_per_seed", round((time.monotonic() - began) / len(seeds()), 1))


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("bench"))
    yield bench
    bench.close()


@pytest.fixture(scope="module")
def expected(bench: Bench) -> str:
    return undisturbed(bench)


@pytest.mark.parametrize("victim", VICTIMS)
def test_capture_is_killed_and_resumed(
    victim: str, bench: Bench, expected: str, record_property: Callable[[str, Any], None]
) -> None:
    """A capture is killed at a random moment and resumed: each prompt once, contents as if undisturbed"""
    for_each_seed(lambda seed: killed_and_resumed(bench, victim, seed, expected), record_property)


def test_trainer_is_killed_and_started_again(
    world: TinyWorld, tmp_path: Path, record_property: Callable[[str, Any], None]
) -> None:
    """The trainer is killed at a random step and started again: final weights are the same bits"""
    expected = trained(world.settings(tmp_path / "whole", epochs=EPOCHS))

    def work(seed: int) -> None:
        killed_and_trained(world.settings(tmp_path / f"seed-{seed}", epochs=EPOCHS), seed, expected)

    for_each_seed(work, record_property)
