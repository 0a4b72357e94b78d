"""Training that is killed, stopped, or hung: what `make verify PART=train` repeats many times."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from observing import is_alive
from rank_runs import LONGEST_S, farthest, last_weights, newest_step, rows, start_ranks, train_on_ranks
from trainer_kills import killed_and_trained, trained

from profiles.load import load_profile
from profiles.training import Scale
from tasks.errors import EXIT_RESUMABLE, JobError
from tasks.processes.job import run_job
from tasks.processes.launcher import LocalLauncher
from tasks.run_folder import create_run
from tasks.train.command import torchrun_argv
from tasks.train.core import trainer_spec
from tasks.train.settings import TrainSettings
from tests.unit.tasks.train.conftest import TinyWorld, one_thread, world

__all__ = ["one_thread", "world"]
pytestmark = [pytest.mark.verify("train"), pytest.mark.timeout(3600)]
OPTIONS: dict[str, Any] = {"optimizer": "muon", "muon_lr": 0.02, "epochs": 6, "packs_per_step": 2}
SEEDS = range(10)


@pytest.fixture(scope="module")
def expected(world: TinyWorld, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return trained(world.settings(tmp_path_factory.mktemp("whole"), **OPTIONS))


@pytest.mark.parametrize("seed", SEEDS)
def test_trainer_is_killed_at_a_random_step(
    seed: int, world: TinyWorld, tmp_path: Path, expected: Any
) -> None:
    """kill -9 at a random step, also inside a write, and a second start: final weights are the same bits"""
    killed_and_trained(world.settings(tmp_path / "stage", **OPTIONS), seed, expected)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_all_ranks_are_killed_at_a_random_step(
    strategy: str, seed: int, world: TinyWorld, tmp_path: Path, record_property: Callable[[str, Any], None]
) -> None:
    """kill -9 of both ranks at a random step and a second start: weights within rounding of undisturbed"""
    scale = {"ranks": 2, "strategy": strategy}
    options = {**OPTIONS, "optimizer": "adamw", "scale": scale, "checkpoint_every_s": 1e-3, "threads": 1}
    whole = world.settings(tmp_path / "whole", **options)
    train_on_ranks(whole)
    last = newest_step(whole.path)
    settings = world.settings(tmp_path / "killed", **options)
    run = start_ranks(settings)
    run.wait_for_step(1 + (7 * seed + 3) % (last - 1))
    for rank in (0, 1):
        run.signal(rank, signal.SIGKILL)
    assert run.join() == [-signal.SIGKILL] * 2
    train_on_ranks(settings)
    distance = farthest(last_weights(whole.path), last_weights(settings.path))
    record_property("farthest", f"{distance:.1e}")
    assert newest_step(settings.path) == last and distance < 1e-4


def test_two_nodes_train_one_draft(world: TinyWorld, tmp_path: Path) -> None:
    """Two torchrun agents, one for each node, meet and train what one process trains"""
    options = {**OPTIONS, "optimizer": "adamw", "epochs": 2}
    train_on_ranks(world.settings(tmp_path / "one", **options))
    scale = Scale(ranks=1, nodes=2, strategy="fsdp", rendezvous="127.0.0.1:29531")
    settings = world.settings(tmp_path / "two", **options, scale=scale.model_dump())
    agents = start_nodes(settings, scale)
    try:
        assert [agent.wait(LONGEST_S) for agent in agents] == [0, 0], (tmp_path / "node-0.log").read_text()
    finally:
        for agent in agents:
            agent.kill()
    assert farthest(last_weights(tmp_path / "one"), last_weights(settings.path)) < 1e-4


def start_nodes(settings: TrainSettings, scale: Scale) -> list[subprocess.Popen[bytes]]:
    settings.path.mkdir()
    config = settings.path / "config.json"
    config.write_text(settings.model_dump_json(), encoding="utf-8")
    agents = []
    for node in range(scale.nodes):
        argv = torchrun_argv(scale, "two-nodes", ("tasks.train.run", str(config)), node)
        with open(settings.path.parent / f"node-{node}.log", "ab") as output:
            environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
            agents.append(subprocess.Popen(argv, stdout=output, stderr=output, env=environment))
    return agents


def test_stop_in_a_long_write_is_still_resumable(world: TinyWorld, tmp_path: Path) -> None:
    """SIGTERM at any moment of two ranks: exit code 75, and the newest checkpoint is the last step taken"""
    scale = {"ranks": 2, "strategy": "fsdp"}
    options = {**OPTIONS, "epochs": 60, "scale": scale, "checkpoint_every_s": 1e-3, "log_every_steps": 1}
    settings = world.settings(tmp_path / "stage", **options)
    for attempt in range(4):
        run = start_ranks(settings)
        run.wait_for_step(5 * attempt + 1)
        time.sleep(0.01 * attempt)
        run.signal(attempt % 2, signal.SIGTERM)
        assert run.join() == [EXIT_RESUMABLE, 0], run.logs()
        assert newest_step(settings.path) == rows(settings.path, "train")[-1]["step"]


def test_rank_that_hangs_ends_the_job_and_leaves_a_checkpoint(
    world: TinyWorld, tmp_path: Path, record_property: Callable[[str, Any], None]
) -> None:
    """One of two ranks sleeps for ever: after the no-progress limit all are ended, and a restart goes on"""
    scale = {"ranks": 2, "strategy": "ddp"}
    options = {**OPTIONS, "epochs": 400, "scale": scale, "checkpoint_every_s": 1e-3, "log_every_steps": 1}
    settings = world.settings(tmp_path / "stage", **options, stop_grace_s=1.0)
    run = create_run(tmp_path / "runs", "hang", load_profile("laptop").profile)
    seen: list[psutil.Process] = []

    def hang() -> None:
        if seen or newest_step(settings.path) < 3:
            return
        seen.extend(ranks_of(tmp_path / "stage"))
        next(rank for rank in seen if rank.environ()["RANK"] == "1").suspend()

    with pytest.raises(JobError, match=r"trainer made no progress for \d+ s"):
        run_job(
            LocalLauncher(),
            trainer_spec(settings),
            run,
            progress=Quiet(),
            progress_file=Path(settings.progress_file),
            stall_timeout_s=60.0,
            watch=hang,
        )
    assert len(seen) == 2 and not [rank for rank in seen if is_alive(rank)]
    reached = newest_step(settings.path)
    record_property("reached", reached)
    train_on_ranks(
        settings.model_copy(update={"train": settings.train.model_copy(update={"max_wall_s": 1e-6})})
    )
    assert newest_step(settings.path) >= reached >= 3


class Quiet:
    """Progress that nobody reads."""

    def update(self, **_: Any) -> None:
        return None


def ranks_of(folder: Path) -> list[psutil.Process]:
    """Ranks that train in `folder`."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(folder / "config.json") in process.cmdline() and "RANK" in process.environ():
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_compiled_layers_learn_the_same(world: TinyWorld, tmp_path: Path) -> None:
    """torch.compile of the layers: losses within rounding of those without it"""
    options = {**OPTIONS, "optimizer": "adamw", "max_steps": 4, "log_every_steps": 1}
    for name, compiled in (("plain", False), ("compiled", True)):
        train_on_ranks(world.settings(tmp_path / name, **options, compile=compiled))
    losses = [[row["loss"] for row in rows(tmp_path / name, "train")] for name in ("plain", "compiled")]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
