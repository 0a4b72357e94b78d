"""A training run on several ranks: each a real process that has imported its libraries already."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from preloaded import preload, start_program

from tasks.train.checkpoint import Checkpoints
from tasks.train.settings import TrainSettings

preload("tasks.train.run", "speculators.models", "torch.distributed.tensor", "torch.distributed.fsdp")
LONGEST_S = 300.0


@dataclass
class RankRun:
    """The ranks of one run.

    Args:
        settings: With `scale`; its folder gets a log of each rank.
        ranks: Processes in order of rank.
    """

    settings: TrainSettings
    ranks: list[BaseProcess]

    def wait_for_step(self, step: int) -> None:
        """Wait until a checkpoint of this step or a later one is complete."""
        deadline = time.monotonic() + LONGEST_S
        while newest_step(self.settings.path) < step:
            assert all(rank.is_alive() for rank in self.ranks), self.logs()
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.005)

    def signal(self, rank: int, number: signal.Signals) -> None:
        pid = self.ranks[rank].pid
        assert pid is not None
        os.kill(pid, number)

    def join(self) -> list[int | None]:
        """Exit codes, when all have ended."""
        for rank in self.ranks:
            rank.join(LONGEST_S)
            if rank.is_alive():
                rank.kill()
        return [rank.exitcode for rank in self.ranks]

    def logs(self) -> str:
        return "\n".join(path.read_text()[-3000:] for path in sorted(self.settings.path.glob("rank-*.log")))


def newest_step(folder: Path) -> int:
    """Step of the newest complete checkpoint; -1 if there is none."""
    try:
        names = [name.removeprefix("step-") for name in os.listdir(folder / "checkpoints")]
    except FileNotFoundError:  # not yet there, or cleared by a training that begins anew
        return -1
    return max([int(name) for name in names if name.isdigit()], default=-1)


def start_ranks(settings: TrainSettings) -> RankRun:
    """Start every rank of `settings.train.scale`, as torchrun does."""
    settings.path.mkdir(parents=True, exist_ok=True)
    config = settings.path / "config.json"
    config.write_text(settings.model_dump_json(), encoding="utf-8")
    argv = ["-m", "tasks.train.run", str(config)]
    return RankRun(settings, start_world(argv, settings.train.scale.world, settings.path))


def start_world(argv: list[str], world: int, folder: Path) -> list[BaseProcess]:
    """Start a program once for each rank, with the environment that torchrun gives; logs go to `folder`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    ranks = []
    for rank in range(world):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
        env = {**meeting, **place} if world > 1 else {}
        ranks.append(start_program(argv, folder / f"rank-{rank}.log", env))
    return ranks


def train_on_ranks(settings: TrainSettings) -> None:
    """Train to the end.

    Raises:
        AssertionError: A rank did not end well; with the end of each log.
    """
    run = start_ranks(settings)
    assert run.join() == [0] * len(run.ranks), run.logs()


def rows(folder: Path, split: str) -> list[dict[str, Any]]:
    """Rows of `metrics.jsonl` of one split."""
    text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
    return [row for row in map(json.loads, text.splitlines()) if row["split"] == split]


def last_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Whole weights of the newest checkpoint."""
    return Checkpoints(folder, keep=2).tensors(newest_step(folder))[0]


def farthest(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    """Largest distance of two tensors of the same name, relative to the norm of the first."""
    assert left.keys() == right.keys()
    return max(
        float((right[name] - value).norm() / value.norm().clamp(min=1e-6)) for name, value in left.items()
    )
