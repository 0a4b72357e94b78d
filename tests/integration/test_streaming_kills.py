"""One `kill -9` of each part of a capture; `make verify PART=streaming` runs twenty of each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from streaming_bench import Bench
from streaming_kills import VICTIMS, killed_and_resumed, undisturbed
from trainer_kills import killed_and_trained, trained

from tests.unit.tasks.train.conftest import TinyWorld, one_thread, world

__all__ = ["one_thread", "world"]
pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("bench"))
    yield bench
    bench.close()


@pytest.fixture(scope="module")
def expected(bench: Bench) -> str:
    return undisturbed(bench)


@pytest.mark.parametrize("victim", VICTIMS)
def test_killed_capture_is_resumed_without_losing_or_doubling(
    victim: str, bench: Bench, expected: str
) -> None:
    killed_and_resumed(bench, victim, seed=0, expected=expected)


def test_killed_trainer_ends_with_the_same_bits(world: TinyWorld, tmp_path: Path) -> None:
    expected = trained(world.settings(tmp_path / "whole", epochs=3))
    killed_and_trained(world.settings(tmp_path / "killed", epochs=3), seed=0, expected=expected)
