"""A secret in the environment of the command is in nothing that a run leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from leaking import forms_of, found_in, variables

from tasks.processes.ports import free_port

STUB = Path(__file__).parents[1] / "fakes" / "stubbed_cli.py"
PASSWORD = "canary-uri-90c1"
CANARY = "kR7/zq+canary&9Wv=x3"
SECRETS = {"HF_TOKEN": "canary-hf-90c1", "MLFLOW_TRACKING_PASSWORD": "canary-ml-90c1"}
pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]


def run_with(runs: Path, *words: str, code: int = 1, **env: str) -> str:
    """Output of a run that fails while it trains."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    done = subprocess.run(
        (sys.executable, str(STUB), "run", "-p", "laptop", *words),
        env={**kept, "STUB_FAIL": "train", **env, "RETRAIN_DSPARK_RUNS": str(runs)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def files_with(runs: Path, *secrets: str) -> list[Path]:
    files = [path for path in runs.rglob("*") if path.is_file()]
    return [path for path in files if any(secret.encode() in path.read_bytes() for secret in secrets)]


def test_secrets_of_the_environment_are_in_no_file_and_files_are_private(tmp_path: Path) -> None:
    """Run folder, MLflow's database and artifacts, Prefect's database."""
    runs = tmp_path / "runs"
    output = run_with(runs, **SECRETS, **variables(CANARY), STUB_LEAK="CANARY_TOKEN")
    assert {"mlflow.db", "prefect.db", "flow.log", "report.html"} <= {path.name for path in runs.rglob("*")}
    assert files_with(runs, *SECRETS.values()) == []
    assert not any(secret in output for secret in SECRETS.values())
    assert found_in(runs, CANARY) == {}
    assert not any(form in output for form in forms_of(CANARY).values())
    assert "a library says (base64): ***" in next(runs.glob("*/logs/flow.log")).read_text()
    assert [path for path in (runs, *runs.rglob("*")) if path.stat().st_mode & 0o077] == []


def test_password_inside_the_address_of_mlflow_is_in_no_file(tmp_path: Path) -> None:
    """The server does not answer, so that its address is in messages, too; and a fault of our own repeats a
    secret in its text."""
    runs = tmp_path / "runs"
    address = f"http://me:{PASSWORD}@127.0.0.1:{free_port('127.0.0.1')}"
    leaking = {**variables(CANARY), "STUB_LEAK": "CANARY_TOKEN", "STUB_FAIL": "", "STUB_CRASH": "train"}
    output = run_with(runs, MLFLOW_TRACKING_URI=address, **leaking)
    assert "MLflow" in output and PASSWORD not in output
    assert list(runs.glob("*/run.json"))
    assert files_with(runs, PASSWORD) == []
    assert found_in(runs, CANARY) == {}


def test_a_profile_that_repeats_a_secret_is_refused_before_a_run_exists(tmp_path: Path) -> None:
    """As an argument of the server it would be in process lists, in MLflow and in Prefect's parameters."""
    runs = tmp_path / "runs"
    word = f"serve.extra_args=['--chat-template={forms_of(CANARY)['base64 of more']}']"
    output = run_with(runs, "--set", word, code=2, **variables(CANARY))
    assert "a secret of the environment stands in the profile" in output and "serve.extra_args.0" in output
    assert found_in(tmp_path, CANARY) == {} and not list(runs.glob("*/run.json"))
    assert not any(text in output for text in forms_of(CANARY).values())
