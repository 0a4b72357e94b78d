"""A stage that hangs asks the machine before it fails: a silent rank is often a broken link."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from profiles.load import load_profile
from tasks.errors import RetrainError, Stalled
from tasks.execute import RunContext, execute_stage
from tasks.processes.launcher import LocalLauncher
from tasks.report.progress import SilentProgress
from tasks.run_folder import create_run
from tasks.stage import MANIFEST
from tasks.stages import TRAIN, VALIDATE


class Untracked:
    """A tracker that keeps nothing."""

    def __getattr__(self, _: str) -> Any:
        return lambda *args: None


class Unreached(LocalLauncher):
    def nodes(self, profile: Any) -> Any:
        raise RetrainError("the allocation is gone")


def hung(tmp_path: Path, launcher: LocalLauncher, **hardware: float) -> tuple[str, bool]:
    """The error of a stage that hangs, and whether a resume would take the machine as checked."""
    ample = {"min_memory_gib": 0, "min_disk_gib": 0, "min_cores": 1, **hardware}
    profile = load_profile("laptop", {"hardware": ample}).profile
    run = create_run(tmp_path, "r", profile)
    checked = run.path / VALIDATE.folder_name / MANIFEST
    checked.parent.mkdir()
    checked.write_text("{}")
    ctx = RunContext(run, profile, Untracked(), SilentProgress(), launcher)

    def work(_: Path) -> Any:
        raise Stalled("trainer made no progress for 60 s", where="trainer.log", hint="see the log")

    with pytest.raises(Stalled) as raised:
        execute_stage(ctx, TRAIN, {}, work)
    assert raised.value.where == "trainer.log" and raised.value.hint == "see the log"
    assert ctx.rows[-1].reason == "trainer made no progress for 60 s"
    return raised.value.what, checked.exists()


def test_a_sound_machine_is_said_in_one_line(tmp_path: Path) -> None:
    said, is_checked = hung(tmp_path, LocalLauncher())
    first, second = said.splitlines()
    assert first == "trainer made no progress for 60 s"
    assert second.startswith("hardware check after it: nothing fails (") and is_checked


def test_what_fails_is_named_and_checked_again_by_a_resume(tmp_path: Path) -> None:
    said, is_checked = hung(tmp_path, LocalLauncher(), min_cores=10**4)
    assert "hardware check after it, which a resume runs again first:" in said
    assert "host.cores: observed" in said and "to do:" in said and not is_checked


def test_what_the_run_itself_holds_is_no_fault_of_the_machine(tmp_path: Path) -> None:
    said, is_checked = hung(tmp_path, LocalLauncher(), min_memory_gib=10**6, min_disk_gib=10**6)
    assert "hardware check after it: nothing fails (" in said and is_checked


def test_a_check_that_fails_itself_hides_no_hang(tmp_path: Path) -> None:
    said, is_checked = hung(tmp_path, Unreached())
    assert said.splitlines()[1] == "the hardware could not be checked after it: the allocation is gone"
    assert is_checked
