"""One training run that is killed at a random step, started again, and compared with an undisturbed one."""

from __future__ import annotations

import json
import random
import signal
import time
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
from preloaded import preload, start_program
from rank_runs import newest_step

from tasks.train.checkpoint import Checkpoints
from tasks.train.settings import TrainSettings

preload("tasks.train.run", "speculators.models")
_LONGEST_S = 300.0
_EVERY_STEP_S = 1e-3
_SOME_STEPS_S = 0.1


@dataclass(frozen=True)
class Trained:
    """What must be the same whether or not the trainer was killed."""

    files: dict[str, str]
    """Exported file -> digest."""
    best_step: int
    steps: int
    held_out_eal: float
    weights: dict[str, torch.Tensor]
    measured: list[tuple[int, float]]
    """Step and held-out acceptance of each evaluation."""


def write_settings(settings: TrainSettings, checkpoint_every_s: float = _EVERY_STEP_S) -> Path:
    """The trainer's configuration file in its stage folder."""
    train = settings.train.model_copy(update={"checkpoint_every_s": checkpoint_every_s})
    settings.path.mkdir(parents=True, exist_ok=True)
    path = settings.path / "config.json"
    path.write_text(settings.model_copy(update={"train": train}).model_dump_json(), encoding="utf-8")
    return path


def trained(settings: TrainSettings) -> Trained:
    """Train to the end and read what came out.

    Raises:
        AssertionError: The trainer did not end well; with the end of its log.
    """
    process = _start(settings, _EVERY_STEP_S)
    process.join(_LONGEST_S)
    assert process.exitcode == 0, (settings.path / "trainer.log").read_text()[-4000:]
    result = json.loads((settings.path / "result.json").read_text(encoding="utf-8"))
    checkpoints = Checkpoints(settings.path, keep=2)
    rows = [json.loads(line) for line in (settings.path / "metrics.jsonl").read_text().splitlines()]
    return Trained(
        files=result["files"],
        best_step=result["step"],
        steps=result["steps"],
        held_out_eal=result["held_out_eal"],
        weights=checkpoints.tensors(checkpoints.steps()[0])[0],
        measured=[(row["step"], row["eal"]) for row in rows if row["split"] == "held_out"],
    )


def killed_and_trained(settings: TrainSettings, seed: int, expected: Trained) -> None:
    """`kill -9` the trainer when it has taken a random share of its steps, start it again, and compare."""
    chosen = random.Random(f"trainer {seed}")
    step = int(chosen.random() * (expected.steps - 1))
    process = _start(settings, chosen.choice((_EVERY_STEP_S, _SOME_STEPS_S)))
    _wait_for_step(settings.path, step, process)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not (settings.path / "result.json").exists()
    found = trained(settings)
    assert (found.files, found.best_step, found.steps) == (expected.files, expected.best_step, expected.steps)
    assert found.measured == expected.measured, "an epoch was measured twice, or not at all"
    assert found.weights.keys() == expected.weights.keys()
    for name, value in expected.weights.items():
        assert torch.equal(value, found.weights[name]), name
    leftovers = [path.name for path in (settings.path / "checkpoints").glob(".*")]
    assert not leftovers, leftovers


def _start(settings: TrainSettings, checkpoint_every_s: float) -> BaseProcess:
    config = write_settings(settings, checkpoint_every_s)
    return start_program(["-m", "tasks.train.run", str(config)], settings.path / "trainer.log")


def _wait_for_step(folder: Path, step: int, process: BaseProcess) -> None:
    """Wait until a checkpoint of `step` or a later one is complete, or the first metrics for step 0."""
    deadline = time.monotonic() + _LONGEST_S
    while time.monotonic() < deadline:
        assert process.is_alive(), (folder / "trainer.log").read_text()[-4000:]
        if _reached(folder) >= step:
            return
        time.sleep(0.001)
    raise AssertionError(f"step {step} was not reached")


def _reached(folder: Path) -> int:
    """Step of the newest checkpoint; 0 once the untrained draft was measured, -1 before."""
    metrics = folder / "metrics.jsonl"
    return max(newest_step(folder), 0 if metrics.exists() and metrics.stat().st_size else -1)
