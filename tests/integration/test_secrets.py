"""A secret in the environment of the command is in nothing that a run leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

STUB = Path(__file__).parents[1] / "fakes" / "stubbed_cli.py"
SECRETS = {"HF_TOKEN": "canary-hf-90c1", "MLFLOW_TRACKING_PASSWORD": "canary-ml-90c1"}
pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]


def test_secrets_of_the_environment_are_in_no_file_and_files_are_private(tmp_path: Path) -> None:
    """Run folder, MLflow's database and artifacts, Prefect's database."""
    runs = tmp_path / "runs"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    done = subprocess.run(
        (sys.executable, str(STUB), "run", "-p", "laptop"),
        env={**kept, **SECRETS, "RETRAIN_DSPARK_RUNS": str(runs), "STUB_FAIL": "train"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    files = [path for path in runs.rglob("*") if path.is_file()]
    assert {"mlflow.db", "prefect.db", "flow.log", "report.html"} <= {path.name for path in files}
    told = [path for path in files if any(s.encode() in path.read_bytes() for s in SECRETS.values())]
    assert told == []
    assert not any(secret in done.stdout + done.stderr for secret in SECRETS.values())
    assert [path for path in (runs, *runs.rglob("*")) if path.stat().st_mode & 0o077] == []
