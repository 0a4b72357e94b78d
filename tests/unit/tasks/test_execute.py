"""A stage is reused when it is valid, says why when it is not, and is complete only after its work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from profiles.load import load_profile
from tasks.errors import JobError
from tasks.execute import RunContext, begin_stage, end_begun, execute_stage, numbers, small_files
from tasks.report.progress import SilentProgress
from tasks.run_folder import create_run
from tasks.stage import Stage
from tasks.stages import TRAIN


class Result(BaseModel):
    value: int


STAGE = Stage(4, "train", 1, ("train",), Result)


class Recorder:
    """Remembers how stages ended."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, str]] = []

    def start(self, stage: str, params: Any) -> None: ...
    def follow(self, stage: str, metrics_file: Path) -> None: ...
    def log_params(self, stage: str, params: Any) -> None: ...
    def log_data(self, stage: str, name: str, digest: str, source: str) -> None: ...
    def send(self, operation: dict[str, Any]) -> None: ...
    def tag(self, stage: str | None, tags: Any) -> None: ...
    def finish(self, stage: str, status: str, metrics: Any, files: Any) -> None:
        self.ended.append((stage, status))


def context(tmp_path: Path, overrides: dict[str, Any] | None = None, **more: Any) -> RunContext:
    profile = load_profile("laptop", overrides).profile
    return RunContext(create_run(tmp_path, "r", profile), profile, Recorder(), SilentProgress(), None, **more)


def write(folder: Path, text: str = "x") -> Result:
    (folder / "out.txt").write_text(text)
    return Result(value=1)


def fail(folder: Path) -> Result:
    raise AssertionError("it was reused")


def test_a_valid_stage_is_reused(tmp_path: Path) -> None:
    assert execute_stage(context(tmp_path), STAGE, {"a": "1"}, write).value == 1
    again = context(tmp_path)
    assert execute_stage(again, STAGE, {"a": "1"}, fail).value == 1
    assert [row.status for row in again.rows] == ["reused"]


def test_training_on_other_processes_is_the_same_stage(tmp_path: Path) -> None:
    stage = replace(TRAIN, model=Result)
    execute_stage(context(tmp_path, {"train": {"packs_per_step": 2}}), stage, {}, write)
    scale = {"ranks": 2, "strategy": "fsdp"}
    elsewhere = {"packs_per_step": 2, "scale": scale, "threads": 1, "prefetch_bytes": 0}
    again = context(tmp_path, {"train": elsewhere})
    assert execute_stage(again, stage, {}, fail).value == 1
    assert [row.status for row in again.rows] == ["reused"]


@pytest.mark.parametrize(
    ("overrides", "inputs", "reason"),
    [
        (
            {"train": {"epochs": 3}},
            {"a": "1"},
            f"profile.train.epochs: {load_profile('laptop').profile.train.epochs} -> 3",
        ),
        ({}, {"a": "2"}, 'inputs.a: "1" -> "2"'),
    ],
)
def test_a_changed_stage_runs_again_from_nothing_and_says_why(
    tmp_path: Path, overrides: dict[str, Any], inputs: dict[str, str], reason: str
) -> None:
    execute_stage(context(tmp_path), STAGE, {"a": "1"}, write)
    ctx = context(tmp_path, overrides)

    def work(folder: Path) -> Result:
        assert not (folder / "out.txt").exists()
        return write(folder)

    execute_stage(ctx, STAGE, inputs, work)
    assert reason in ctx.rows[0].reason


@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_a_damaged_file_makes_the_stage_run_again(tmp_path: Path, damage: str) -> None:
    first = context(tmp_path)
    execute_stage(first, STAGE, {}, write)
    file = first.run.path / "04-train" / "out.txt"
    file.unlink() if damage == "missing" else file.write_text("y")
    ctx = context(tmp_path)
    execute_stage(ctx, STAGE, {}, write)
    assert (ctx.rows[0].status, damage in ctx.rows[0].reason) == ("completed", True)


@pytest.mark.parametrize("mends", [True, False])
def test_only_a_stage_that_can_mend_keeps_the_rest_of_a_damaged_folder(tmp_path: Path, mends: bool) -> None:
    stage = replace(STAGE, mends=mends)

    def two(folder: Path) -> Result:
        (folder / "other.txt").write_text("kept")
        return write(folder)

    first = context(tmp_path)
    execute_stage(first, stage, {}, two)
    (first.run.path / "04-train" / "out.txt").unlink()
    found = []

    def work(folder: Path) -> Result:
        found.append((folder / "other.txt").exists())
        return write(folder)

    execute_stage(context(tmp_path), stage, {}, work)
    changed = context(tmp_path, {"train": {"epochs": 3}})
    (first.run.path / "04-train" / "other.txt").write_text("of other work")
    execute_stage(changed, stage, {}, work)
    assert found == [mends, False]


def test_an_unfinished_attempt_is_resumed_with_its_files(tmp_path: Path) -> None:
    def half(folder: Path) -> Result:
        (folder / "half").write_text("kept")
        raise JobError("stopped")

    first = context(tmp_path)
    with pytest.raises(JobError):
        execute_stage(first, STAGE, {}, half)
    assert first.tracker.ended == [("train", "FAILED")]  # type: ignore[attr-defined]
    assert (first.rows[0].status, first.rows[0].reason) == ("failed", "stopped")

    def rest(folder: Path) -> Result:
        assert (folder / "half").read_text() == "kept"
        return write(folder)

    execute_stage(context(tmp_path), STAGE, {}, rest)


def test_an_interruption_is_tracked_as_killed(tmp_path: Path) -> None:
    def interrupted(folder: Path) -> Result:
        raise KeyboardInterrupt

    ctx = context(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        execute_stage(ctx, STAGE, {}, interrupted)
    assert ctx.tracker.ended == [("train", "KILLED")]  # type: ignore[attr-defined]


def test_a_forced_stage_runs_again_once_in_one_attempt(tmp_path: Path) -> None:
    execute_stage(context(tmp_path), STAGE, {}, write)
    forced = context(tmp_path, from_stage="train", attempt="a")
    execute_stage(forced, STAGE, {}, write)
    assert (forced.rows[0].status, forced.rows[0].reason) == ("completed", "asked for again")
    retried = context(tmp_path, from_stage="train", attempt="a")
    execute_stage(retried, STAGE, {}, fail)
    earlier = context(tmp_path, from_stage="publish", attempt="b")
    execute_stage(earlier, STAGE, {}, fail)


def test_a_stage_that_began_early_is_taken_over_and_compared_by_what_it_began_with(tmp_path: Path) -> None:
    first = context(tmp_path)
    (begin_stage(first, STAGE, {"plan": "1"}) / "early").touch()
    end_begun(first, "FAILED")
    assert first.tracker.ended == [("train", "FAILED")]  # type: ignore[attr-defined]
    assert [(row.name, row.status) for row in first.rows] == [("train", "failed")]
    second = context(tmp_path)
    folder = begin_stage(second, STAGE, {"plan": "1"})
    assert (folder / "early").exists()
    execute_stage(second, STAGE, {"a": "1"}, write, {"plan": "1"})
    end_begun(second, "FAILED")
    assert second.tracker.ended == [("train", "FINISHED")]  # type: ignore[attr-defined]
    assert [row.status for row in second.rows] == ["completed"]
    execute_stage(context(tmp_path), STAGE, {"a": "1"}, fail, {"plan": "1"})
    third = context(tmp_path)
    execute_stage(third, STAGE, {"a": "2"}, write, {"plan": "1"})
    assert "inputs.a" in third.rows[0].reason


def test_what_began_with_another_plan_is_not_continued(tmp_path: Path) -> None:
    first = context(tmp_path)
    (begin_stage(first, STAGE, {"plan": "1"}) / "early").touch()
    end_begun(first, "FAILED")
    assert not (begin_stage(context(tmp_path), STAGE, {"plan": "2"}) / "early").exists()


def test_numbers_are_flattened_without_truth_values() -> None:
    assert numbers({"a": {"b": 1, "c": True}, "d": 2.5, "e": "x", "f": [1]}) == {"a/b": 1.0, "d": 2.5}


def test_only_files_without_text_leave_the_run_folder(tmp_path: Path) -> None:
    for name in ("manifest.json", "lost.jsonl", "metrics.jsonl", "token_counts.json", "other.jsonl"):
        (tmp_path / name).write_text("{}")
    for name in ("answers/replay.jsonl", "arms/plain.json"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("{}")
    names = [path.name for path in small_files(tmp_path)]
    assert names == ["manifest.json", "lost.jsonl", "metrics.jsonl"]
    shown = {path.name for path in small_files(tmp_path, show_text=True)}
    assert shown == {*names, "token_counts.json", "replay.jsonl", "plain.json"}
    assert small_files(tmp_path / "missing") == ()
