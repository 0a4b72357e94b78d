"""Training on two ranks is training on one, but for rounding: losses, weights, samples, resume."""

from __future__ import annotations

import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import sharded_muon
import torch
from rank_runs import (
    LONGEST_S,
    farthest,
    last_weights,
    rows,
    start_ranks,
    start_world,
    train_on_ranks,
)
from safetensors.torch import load_file

from tasks.errors import EXIT_RESUMABLE
from tasks.train.initial import InitialDraft, draft_digest
from tasks.train.journal import samples_of_steps
from tasks.train.settings import TrainSettings
from tests.unit.tasks.train.arriving import MIXED, TRAIN_ORDER, capture_again
from tests.unit.tasks.train.conftest import TinyWorld, one_thread, world
from tests.unit.tasks.train.test_growing import WINDOW, flat, growing

__all__ = ["one_thread", "world"]
pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
ADAMW = {"optimizer": "adamw"}
MUON = {"optimizer": "muon", "muon_lr": 0.02}
# Muon orthogonalises in bfloat16, where a rounding error of a gradient may become one of 2^-8.
FARTHEST = {"adamw": 1e-4, "muon": 0.1}


def options(optimizer: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"packs_per_step": 4, "epochs": 3, "log_every_steps": 1, "threads": 1} | optimizer | more


def on_two(strategy: str) -> dict[str, Any]:
    return {"scale": {"ranks": 2, "strategy": strategy}}


@pytest.fixture(scope="module")
def alone(world: TinyWorld, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of the same training on one rank."""
    found = {}
    for name, optimizer in (("adamw", ADAMW), ("muon", MUON)):
        found[name] = tmp_path_factory.mktemp(name)
        train_on_ranks(world.settings(found[name], **options(optimizer)))
    return found


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("optimizer", [ADAMW, MUON], ids=["adamw", "muon"])
def test_losses_of_two_ranks_are_those_of_one(
    world: TinyWorld, tmp_path: Path, alone: dict[str, Path], optimizer: dict[str, Any], strategy: str
) -> None:
    name = optimizer["optimizer"]
    train_on_ranks(world.settings(tmp_path, **options(optimizer, **on_two(strategy))))
    one, two = rows(alone[name], "train"), rows(tmp_path, "train")
    assert [row["step"] for row in one] == [row["step"] for row in two] == list(range(1, len(one) + 1))
    for left, right in zip(one, two, strict=True):
        for metric in ("loss", "ce_loss", "tv_loss", "confidence_loss", "lr"):
            assert right[metric] == pytest.approx(left[metric], rel=1e-5 if name == "adamw" else 1e-3), metric
    held = [row["loss"] for row in rows(alone[name], "held_out")]
    assert [row["loss"] for row in rows(tmp_path, "held_out")] == pytest.approx(held, rel=1e-3)
    assert farthest(last_weights(alone[name]), last_weights(tmp_path)) < FARTHEST[name]


def test_muon_on_shards_is_muon_on_whole_matrices(tmp_path: Path) -> None:
    """Bit for bit, for gradients that are equal."""
    result = tmp_path / "sharded.safetensors"
    ranks = start_world([sharded_muon.__file__, str(result)], 2, tmp_path)
    for rank in ranks:
        rank.join(LONGEST_S)
        assert rank.exitcode == 0, (tmp_path / "rank-0.log").read_text()
    whole = {name: torch.nn.Parameter(sharded_muon.values(name, -1)) for name in sharded_muon.SHAPES}
    optimizer = torch.optim.Muon(list(whole.values()), **sharded_muon.OPTIONS)
    for step in range(sharded_muon.STEPS):
        for name, parameter in whole.items():
            parameter.grad = sharded_muon.values(name, step)
        optimizer.step()
    found = load_file(result)
    for name, parameter in whole.items():
        assert torch.equal(found[name], parameter.detach()), name


@pytest.mark.parametrize("before", [1, 2])
def test_run_goes_on_with_another_number_of_ranks(
    world: TinyWorld, tmp_path: Path, alone: dict[str, Path], before: int
) -> None:
    """What one rank wrote two shards go on with, and the other way round."""
    scales = {1: {}, 2: on_two("fsdp")}
    slow = options(MUON, checkpoint_every_s=1e-3)
    first = start_ranks(world.settings(tmp_path, **slow, **scales[before]))
    first.wait_for_step(3)
    first.signal(before - 1, signal.SIGTERM)  # a follower, where there is one: all of them stop
    codes = first.join()
    assert codes[0] == EXIT_RESUMABLE and codes[1:] in ([], [0]), first.logs()
    taken = len(rows(tmp_path, "train"))
    train_on_ranks(world.settings(tmp_path, **slow, **scales[3 - before]))
    one, both = rows(alone["muon"], "train"), rows(tmp_path, "train")
    assert 3 <= taken < len(one), "it was to be stopped on the way"
    assert [row["loss"] for row in both] == pytest.approx([row["loss"] for row in one], rel=1e-3)
    assert farthest(last_weights(alone["muon"]), last_weights(tmp_path)) < FARTHEST["muon"]


def starting_from(world: TinyWorld, folder: Path, earlier: Path, **train: Any) -> TrainSettings:
    initial = InitialDraft(name="v0001", folder=str(earlier), digest=draft_digest(earlier))
    return world.settings(folder, **train).model_copy(update={"initial": initial})


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_every_rank_starts_from_the_earlier_draft(
    world: TinyWorld, tmp_path: Path, alone: dict[str, Path], strategy: str
) -> None:
    """A shard of untrained weights on one rank would show in the first loss."""
    values = options(ADAMW, epochs=1)
    one, two = tmp_path / "one", tmp_path / "two"
    train_on_ranks(starting_from(world, one, alone["adamw"] / "draft", **values))
    train_on_ranks(starting_from(world, two, alone["adamw"] / "draft", **values, **on_two(strategy)))
    left, right = rows(one, "train"), rows(two, "train")
    assert [row["loss"] for row in right] == pytest.approx([row["loss"] for row in left], rel=1e-5)
    assert left[0]["loss"] < rows(alone["adamw"], "train")[0]["loss"]
    assert farthest(last_weights(one), last_weights(two)) < FARTHEST["adamw"]


def test_an_earlier_draft_that_was_changed_ends_all_ranks(
    world: TinyWorld, tmp_path: Path, alone: dict[str, Path]
) -> None:
    """The leader says why; the other rank ends without a word of its own, and nothing hangs."""
    earlier = tmp_path / "earlier"
    shutil.copytree(alone["adamw"] / "draft", earlier)
    settings = starting_from(world, tmp_path / "run", earlier, **options(ADAMW, **on_two("fsdp")))
    config = earlier / "config.json"
    config.write_text(config.read_text(encoding="utf-8") + " ", encoding="utf-8")
    run = start_ranks(settings)
    codes = run.join()
    assert codes[0] not in (0, None) and codes[1] == 0, run.logs()
    assert "it was changed since the run began" in (settings.path / "rank-0.log").read_text()
    assert "Traceback" not in run.logs()


@pytest.mark.parametrize("window", [None, WINDOW], ids=["all", "window"])
def test_two_ranks_follow_a_growing_log(world: TinyWorld, tmp_path: Path, window: int | None) -> None:
    scaled = {"packs_per_step": 2, "epochs": 1} | on_two("ddp")
    settings = growing(world, tmp_path, window, **scaled)
    capture_again(world.log, tmp_path / "log", MIXED[:3], window_bytes=window, finish=False)
    written = threading.Thread(
        target=capture_again, args=(world.log, tmp_path / "log"), kwargs={"window_bytes": window}
    )
    written.start()
    train_on_ranks(settings)
    written.join()
    assert tuple(flat(tmp_path / "stage")) == TRAIN_ORDER
    assert all(samples_of_steps(tmp_path / "stage"))
