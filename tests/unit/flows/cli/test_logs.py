"""`retrain-dspark logs`: which log belongs to which stage."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.cli.logs import log_files
from profiles.load import load_profile
from tasks.run_folder import RunFolder, create_run
from tasks.stages import STAGE_NAMES

LOGS = (
    "arm-draft", "arm-plain", "capture", "flow", "replay", "store-check-master", "store-master",
    "target", "trainer",
)  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = create_run(tmp_path, "r1", load_profile("laptop").profile)
    for name in LOGS:
        (run.logs / f"{name}.log").touch()
    return run


def test_every_process_log_is_shown_with_its_stage(run: RunFolder) -> None:
    shown = {stage: [path.stem for path in log_files(run, stage)] for stage in STAGE_NAMES}
    assert shown == {
        "validate": ["store-check-master"],
        "serve": ["store-master", "target"],
        "stream": ["capture"],
        "train": ["trainer"],
        "evaluate": ["arm-draft", "arm-plain", "replay"],
        "publish": ["flow"],
    }
    assert [path.stem for path in log_files(run, None)] == list(LOGS)


def test_a_stage_that_started_no_process_is_told_of_by_the_flow(run: RunFolder) -> None:
    (run.logs / "store-check-master.log").unlink()
    assert [path.name for path in log_files(run, "validate")] == ["flow.log"]
