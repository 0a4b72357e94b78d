"""The trainer as a process: SIGTERM leaves a checkpoint and exit code 75, and the next start continues."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks.errors import EXIT_RESUMABLE
from tests.unit.tasks.train.conftest import TinyWorld, one_thread, world
from tests.unit.tasks.train.test_loop import newest_weights

__all__ = ["one_thread", "world"]
pytestmark = pytest.mark.integration


@pytest.fixture
def config(world: TinyWorld, tmp_path: Path) -> Path:
    """Configuration of a run that is long enough to be interrupted."""
    folder = tmp_path / "stage"
    folder.mkdir()
    path = folder / "config.json"
    path.write_text(world.settings(folder, epochs=40).model_dump_json(), encoding="utf-8")
    return path


def start(config: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "tasks.train.run", str(config)])


def wait_for_steps(folder: Path, process: subprocess.Popen[bytes], deadline_s: float = 240) -> None:
    """Wait until the trainer has logged training steps."""
    end = time.monotonic() + deadline_s
    metrics = folder / "metrics.jsonl"
    while time.monotonic() < end:
        assert process.poll() is None, "the trainer ended by itself"
        if metrics.exists() and '"split": "train"' in metrics.read_text(encoding="utf-8"):
            return
        time.sleep(0.05)
    raise AssertionError("no training step was logged in time")


def test_sigterm_saves_and_the_next_start_continues(config: Path) -> None:
    folder = config.parent
    process = start(config)
    wait_for_steps(folder, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == EXIT_RESUMABLE
    saved = sorted(int(p.name.removeprefix("step-")) for p in (folder / "checkpoints").glob("step-*"))
    assert saved and not (folder / "result.json").exists()
    newest_weights(folder)
    assert start(config).wait(timeout=240) == 0
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    held = [row["step"] for row in rows if row["split"] == "held_out"]
    assert held == sorted(set(held)), "an epoch was measured twice, so training began anew"
    assert result["steps"] == held[-1] and result["epochs"] == 40
