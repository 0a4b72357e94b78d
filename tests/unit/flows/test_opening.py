"""Opening a run: what another process works on stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from filelock import FileLock

from flows.opening import opened_run
from profiles.load import load_profile
from profiles.overrides import ProfileOverrides
from tasks.errors import UsageError
from tasks.run_folder import RUNS_ENV, create_run


def test_a_run_that_is_worked_on_keeps_its_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUNS_ENV, str(tmp_path))
    run = create_run(tmp_path, "r1", load_profile("laptop").profile)
    before = (run.path / "profile.json").read_text()
    overrides = ProfileOverrides.model_validate({"train": {"epochs": 77}})
    with (
        FileLock(run.path / ".lock"),
        pytest.raises(UsageError, match="is being worked on"),
        opened_run("laptop", overrides, "r1", None),
    ):
        pass
    assert (run.path / "profile.json").read_text() == before
