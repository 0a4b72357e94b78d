"""The budget counts all attempts and stops between two pieces of work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from profiles.load import load_profile
from tasks.budget import Held, Spending, WatchedHandle, WatchedLauncher, WatchedProgress, held_so_far
from tasks.errors import EXIT_RESUMABLE, BudgetSpent
from tasks.report.progress import SilentProgress
from tasks.run_folder import RunFolder, create_run


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def spending(
    root: Path, profile: str = "gb300-kimi-k3", **budget: float
) -> tuple[Spending, Clock, RunFolder]:
    loaded = load_profile(profile, {"budget": budget}).profile
    run, clock = create_run(root, "r1", loaded), Clock()
    return Spending(run, loaded, clock), clock, run


def test_all_nodes_are_held_all_the_time(tmp_path: Path) -> None:
    found, clock, _ = spending(tmp_path, gpu_hours=12)
    clock.now = 3599
    found.check()
    assert found.held.node_hours == pytest.approx(3, rel=1e-3)
    clock.now = 3600
    with pytest.raises(BudgetSpent, match=r"12 of 12 GPU-hours, all attempts together") as info:
        found.check()
    assert info.value.exit_code == EXIT_RESUMABLE and info.value.where == "budget.gpu_hours"
    assert "resume r1 --set budget.gpu_hours" in info.value.hint


def test_attempts_add_up_also_after_a_kill(tmp_path: Path) -> None:
    found, clock, run = spending(tmp_path, node_hours=4)
    clock.now = 2400
    found.check()  # writes down what was held; the process may be killed now
    held = held_so_far(run.path)
    assert (held.node_hours, held.gpu_hours) == pytest.approx((2.0, 8.0))
    later, clock, _ = spending(tmp_path, node_hours=4)
    clock.now = 2399
    later.check()
    clock.now = 2401
    with pytest.raises(BudgetSpent, match="node-hours"):
        later.check()


def test_without_a_limit_nothing_stops(tmp_path: Path) -> None:
    found, clock, _ = spending(tmp_path)
    clock.now = 1e9
    found.check()


def test_a_machine_without_gpus_holds_no_gpu_hours(tmp_path: Path) -> None:
    found, clock, _ = spending(tmp_path, "laptop", gpu_hours=1e-6)
    clock.now = 7200
    found.check()
    assert found.held == Held(2.0, 0.0)


def test_gpus_that_the_checks_found_are_counted(tmp_path: Path) -> None:
    found, clock, run = spending(tmp_path, "h200-qwen3-8b", gpu_hours=3)
    clock.now = 3600
    found.check()
    folder = run.path / "01-validate"
    folder.mkdir()
    (folder / "manifest.json").write_text('{"result": {"nodes": [{"gpus": [{}, {}, {}, {}]}]}}')
    with pytest.raises(BudgetSpent, match="4 of 3 GPU-hours"):
        found.check()


def test_progress_starts_and_looks_at_processes_stop_it(tmp_path: Path) -> None:
    found, clock, _ = spending(tmp_path, node_hours=1)

    class Running:
        pid = 7

        def poll(self) -> int | None:
            return None

    class Launcher:
        started = 0

        def start(self, *words: Any) -> Any:
            self.started += 1
            return Running()

        def nodes(self, profile: Any) -> str:
            return "all"

    inner = Launcher()
    launcher, shown = WatchedLauncher(inner, found), WatchedProgress(SilentProgress(), found)
    handle = launcher.start("spec", "run")
    assert (launcher.nodes(None), handle.pid, handle.poll(), inner.started) == ("all", 7, None, 1)
    clock.now = 3600
    for work in (
        handle.poll,
        lambda: launcher.start("spec", "run"),
        lambda: shown.update(done=1, total=2, unit="steps"),
    ):
        with pytest.raises(BudgetSpent):
            work()
    assert inner.started == 1
    shown.say("still shown")
    ended = WatchedHandle(type("Ended", (), {"poll": lambda self: 0})(), found)
    assert ended.poll() == 0, "a process that ended is not asked about the budget"
