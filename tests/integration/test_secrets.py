"""A secret in the environment of the command is in nothing that a run leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.processes.ports import free_port

STUB = Path(__file__).parents[1] / "fakes" / "stubbed_cli.py"
PASSWORD = "canary-uri-90c1"
SECRETS = {"HF_TOKEN": "canary-hf-90c1", "MLFLOW_TRACKING_PASSWORD": "canary-ml-90c1"}
pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]


def run_with(runs: Path, **env: str) -> str:
    """Output of a run that fails while it trains."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    done = subprocess.run(
        (sys.executable, str(STUB), "run", "-p", "laptop"),
        env={**kept, **env, "RETRAIN_DSPARK_RUNS": str(runs), "STUB_FAIL": "train"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    return done.stdout + done.stderr


def files_with(runs: Path, *secrets: str) -> list[Path]:
    files = [path for path in runs.rglob("*") if path.is_file()]
    return [path for path in files if any(secret.encode() in path.read_bytes() for secret in secrets)]


def test_secrets_of_the_environment_are_in_no_file_and_files_are_private(tmp_path: Path) -> None:
    """Run folder, MLflow's database and artifacts, Prefect's database."""
    runs = tmp_path / "runs"
    output = run_with(runs, **SECRETS)
    assert {"mlflow.db", "prefect.db", "flow.log", "report.html"} <= {path.name for path in runs.rglob("*")}
    assert files_with(runs, *SECRETS.values()) == []
    assert not any(secret in output for secret in SECRETS.values())
    assert [path for path in (runs, *runs.rglob("*")) if path.stat().st_mode & 0o077] == []


def test_password_inside_the_address_of_mlflow_is_in_no_file(tmp_path: Path) -> None:
    """The server does not answer, so that its address is in messages, too."""
    runs = tmp_path / "runs"
    address = f"http://me:{PASSWORD}@127.0.0.1:{free_port('127.0.0.1')}"
    output = run_with(runs, MLFLOW_TRACKING_URI=address)
    assert "MLflow" in output and PASSWORD not in output
    assert list(runs.glob("*/run.json"))
    assert files_with(runs, PASSWORD) == []
