"""A tracking server that goes away while a draft trains: training goes on, and the records arrive later.

The server is MLflow's own. The tracker is given little time at start and at the end, so that a test is short.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from preloaded import preload, start_program
from tcp_gate import TcpGate, gate_before
from trainer_kills import write_settings

from profiles.load import load_profile
from tasks.run_folder import RunFolder, create_run
from tasks.tracking import URI_ENV, MlflowSink
from tasks.tracking_queue import SPOOL, Tracker
from tests.unit.tasks.train.conftest import TinyWorld, one_thread, world

__all__ = ["one_thread", "world"]
pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
preload("tasks.train.run", "speculators.models")
LONGEST_S = 120.0
EXPERIMENT = "outage"


class Tracked:
    """A training whose metrics are followed by a tracker.

    Args:
        said: What the user was told.
    """

    def __init__(self, world: TinyWorld, folder: Path) -> None:
        self.settings = world.settings(folder / "stage", epochs=12, log_every_steps=1)
        self.run: RunFolder = create_run(folder / "runs", folder.name, load_profile("laptop").profile)
        self.said: list[str] = []

    @property
    def metrics(self) -> Path:
        return self.settings.path / "metrics.jsonl"

    def losses(self) -> list[float]:
        """Of the rows that the trainer has written so far."""
        if not self.metrics.exists():
            return []
        text = self.metrics.read_text(encoding="utf-8")
        rows = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        return [row["loss"] for row in rows if row["split"] == "train"]

    def tracker(self) -> Tracker:
        sink = MlflowSink(EXPERIMENT, self.run.path.parent)
        return Tracker(self.run, {}, self.said.append, sink, answer_s=3.0)

    def train(self, tracker: Tracker, at_step: dict[int, Callable[[], None]]) -> None:
        """Train to the end; `at_step` says what happens when so many rows are written."""
        tracker.open({}, self.run.path / "profile.json")
        tracker.start("train", {})
        tracker.follow("train", self.metrics)
        config = write_settings(self.settings)
        trainer = start_program(["-m", "tasks.train.run", str(config)], self.settings.path / "trainer.log")
        due = sorted(at_step)
        while trainer.is_alive():
            if due and len(self.losses()) >= due[0]:
                at_step[due.pop(0)]()
            time.sleep(0.005)
        trainer.join()
        assert trainer.exitcode == 0, (self.settings.path / "trainer.log").read_text()[-3000:]
        assert not due, "the server was there all the time"
        tracker.finish("train", "FINISHED", {}, ())

    def recorded(self, server: str) -> list[float]:
        """Losses of the train stage that the server holds, in order of steps."""
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=server)
        found = client.get_experiment_by_name(EXPERIMENT)
        key = f"tags.`dspark.key` = '{self.run.run_id}:train'"
        runs: list[Any] = client.search_runs([found.experiment_id], key) if found else []
        if not runs:
            return []
        history = client.get_metric_history(runs[0].info.run_id, "train/loss")
        return [point.value for point in sorted(history, key=lambda point: point.step)]

    def wait_until_recorded(self, server: str) -> None:
        deadline = time.monotonic() + LONGEST_S
        while self.recorded(server) != pytest.approx(self.losses()):
            assert time.monotonic() < deadline, (len(self.recorded(server)), len(self.losses()), self.said)
            time.sleep(0.2)


@pytest.fixture
def gate(pages: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    with gate_before(pages.mlflow) as gate:
        monkeypatch.setenv(URI_ENV, gate.url)
        yield gate


@pytest.fixture
def tracked(world: TinyWorld, tmp_path: Path) -> Tracked:
    return Tracked(world, tmp_path)


@pytest.mark.parametrize("fault", [TcpGate.refuse, TcpGate.go_silent])
def test_records_of_an_outage_arrive_when_the_server_is_back(
    fault: Callable[[TcpGate], None], tracked: Tracked, gate: TcpGate, pages: Any
) -> None:
    tracker = tracked.tracker()
    tracked.train(tracker, {5: lambda: fault(gate), 15: gate.open})
    tracked.wait_until_recorded(pages.mlflow)
    tracker.close("FINISHED")
    assert len(tracked.losses()) > 15 and not (tracked.run.path / SPOOL).exists()


def test_server_that_never_comes_back_delays_by_a_bound(tracked: Tracked, gate: TcpGate, pages: Any) -> None:
    tracker = tracked.tracker()
    tracked.train(tracker, {5: gate.go_silent})
    tracker.close("FINISHED")
    assert any(SPOOL in line for line in tracked.said)
    assert len(tracked.recorded(pages.mlflow)) < len(tracked.losses())
    gate.open()
    again = tracked.tracker()
    again.open({}, tracked.run.path / "profile.json")
    tracked.wait_until_recorded(pages.mlflow)
    again.close("FINISHED")


def test_server_that_is_away_from_the_start_gets_everything_on_resume(
    tracked: Tracked, gate: TcpGate, pages: Any
) -> None:
    gate.refuse()
    tracker = tracked.tracker()
    tracked.train(tracker, {})
    tracker.close("FINISHED")
    assert tracked.said[0].startswith("MLflow cannot be reached"), tracked.said
    assert any(line.startswith("MLflow does not answer") for line in tracked.said)
    gate.open()
    again = tracked.tracker()
    again.open({}, tracked.run.path / "profile.json")
    tracked.wait_until_recorded(pages.mlflow)
    again.close("FINISHED")
    assert not (tracked.run.path / SPOOL).exists()
