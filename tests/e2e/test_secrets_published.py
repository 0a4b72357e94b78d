"""A whole laptop run on real engines whose stages repeat a secret: `make verify PART=publish`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from leaking import forms_of, found_in, variables

from tasks.publish.speculation_profile import read_speculation_profile

pytestmark = [pytest.mark.verify("publish"), pytest.mark.timeout(3600)]
PROGRAM = Path(__file__).parents[1] / "fakes" / "leaking_cli.py"
CANARY = "pX4/vb+canary&7Ty=w1"
FOREIGN = ("PREFECT_", "MLFLOW_", "RETRAIN_DSPARK_")
Record = Callable[[str, object], None]
SMALLER = (
    "prompts.train_per_domain=4",
    "prompts.evaluate_per_domain=2",
    "stream.max_new_tokens=24",
    "train.epochs=1",
    "evaluate.replay_max_new_tokens=20",
    "evaluate.live.per_domain=1",
    "evaluate.live.max_new_tokens=8",
    "publish.margin=0",
)


def test_a_secret_that_every_stage_repeats_is_in_nothing_that_a_run_leaves(
    tmp_path: Path, record_property: Record
) -> None:
    """A canary in environment, logs and errors, in six forms, is in no published file, database or log."""
    words = [word for setting in SMALLER for word in ("--set", setting)]
    runs = tmp_path / "runs"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    secrets = {**variables(CANARY), "HF_TOKEN": CANARY, "LEAK": "CANARY_TOKEN"}
    done = subprocess.run(
        (sys.executable, str(PROGRAM), "run", "-p", "laptop", *words),
        env={**kept, **secrets, "RETRAIN_DSPARK_RUNS": str(runs)},
        capture_output=True,
        text=True,
    )
    summary = json.loads(next(runs.glob("*/summary.json")).read_text())
    assert summary["status"] in ("completed", "held"), done.stderr[-4000:]
    location = Path(summary["publication"]["location"])
    assert read_speculation_profile(location).measured("replay") is not None
    names = {path.name for path in runs.rglob("*")}
    assert {"mlflow.db", "prefect.db", "flow.log", "report.html", "README.md", "target.log"} <= names
    log = next(runs.glob("*/logs/flow.log")).read_text()
    assert log.count("a library says (base64): ***") == 6  # the leak was there, and was masked
    assert found_in(runs, CANARY) == {}
    output = done.stdout + done.stderr
    assert not any(form in output for form in forms_of(CANARY).values())
    record_property("files_searched", sum(path.is_file() for path in runs.rglob("*")))
    record_property("published", summary["publication"]["kind"] if summary["decision"]["promote"] else "held")
