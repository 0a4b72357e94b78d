"""The end of a run is recorded even where the page cannot be drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tasks.errors import HardwareError, JobError
from tasks.report import page
from tasks.report.finish import finish_report
from tasks.report.record import read_run
from tasks.run_folder import RunFolder

MakeRun = Callable[..., RunFolder]


@dataclass
class Row:
    name: str
    status: str
    seconds: float
    reason: str = ""


def test_summary_and_page_are_written(make_run: MakeRun) -> None:
    run = make_run(summarise=False)
    rows = [Row("validate", "completed", 1.0), Row("train", "completed", 5.0, "changed: train.lr")]
    summary = finish_report(run, rows, "completed", seconds=7.0)
    assert summary["status"] == "completed" and summary["seconds"] == 7.0
    assert (run.path / "summary.json").is_file() and (run.path / "report.html").is_file()
    assert read_run(run).facts["stage_reasons"] == {"train": "changed: train.lr"}


def test_error_belongs_to_the_failed_stage(make_run: MakeRun) -> None:
    run = make_run(status="cancelled", stopped_at="train", summarise=False)
    finish_report(run, [Row("train", "failed", 2.0)], "failed", error=JobError("died", hint="resume"))
    error = read_run(run).error
    assert error is not None and (error["stage"], error["what"]) == ("train", "died")


def test_unfit_machine_is_a_failed_validate(make_run: MakeRun) -> None:
    run = make_run(status="failed", stopped_at="validate", summarise=False)
    rows = [Row("validate", "completed", 2.0)]
    summary = finish_report(run, rows, "failed", error=HardwareError("too small"))
    assert summary["stages"][0]["status"] == "failed"
    error = read_run(run).error
    assert error is not None and error["stage"] == "validate"


def test_a_later_success_forgets_the_error(make_run: MakeRun) -> None:
    run = make_run(status="failed", stopped_at="publish", summarise=False)
    assert read_run(run).error is not None
    finish_report(run, [Row("publish", "completed", 1.0)], "completed")
    assert read_run(run).error is None


def test_a_page_that_cannot_be_drawn_changes_nothing(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = make_run(summarise=False)
    monkeypatch.setattr(page, "TEMPLATES", run.path / "nowhere")
    assert finish_report(run, [], "completed")["status"] == "completed"
    assert "the report page was not written" in caplog.text
