"""How `run` and `resume` end: closing lines on standard output, an error once on standard error."""

from __future__ import annotations

from pathlib import Path

import pytest
from prefect.states import Completed, Failed

from flows.cli.pipeline import _report
from profiles.load import load_profile
from tasks.errors import EXIT_DONE, EXIT_FAILED, JobError
from tasks.report.record import record_error
from tasks.report.summary import build_summary, write_summary
from tasks.run_folder import RunFolder, create_run


def failed_run(root: Path, error: Exception) -> RunFolder:
    run = create_run(root, "r1", load_profile("laptop").profile)
    record_error(run, "train", error)
    write_summary(run, build_summary(run, [{"name": "train", "status": "failed", "seconds": 1.0}], "failed"))
    return run


def test_an_error_is_printed_once_with_the_end_of_its_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = JobError("the trainer died", where="logs/trainer.log", hint="look", log_tail=["out of memory"])
    assert _report(failed_run(tmp_path, error), Failed(data=error), "") == EXIT_FAILED
    shown = capsys.readouterr()
    assert (shown.out + shown.err).count("the trainer died") == 1
    assert "error: the trainer died" in shown.err and "out of memory" in shown.err
    assert "failed in train" in shown.out and "retrain-dspark logs r1 train" in shown.out
    assert "retrain-dspark resume r1" in shown.out


def test_a_flow_that_ended_well_prints_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _report(None, Completed(), "") == EXIT_DONE
    assert capsys.readouterr().err == ""
