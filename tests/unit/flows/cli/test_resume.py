"""`resume` refuses bad input before anything starts; ports and disk count only where not checked before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flows.cli.main import run_cli
from profiles.load import load_profile
from tasks.errors import EXIT_DONE, EXIT_USAGE
from tasks.run_folder import RUNS_ENV, RunFolder, create_run
from tasks.stage import fingerprint
from tasks.stages import VALIDATE
from tasks.validate.models import ValidationReport


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setenv(RUNS_ENV, str(tmp_path))
    monkeypatch.setattr("flows.cli.pipeline.run_pipeline", lambda **_: EXIT_DONE)
    return create_run(tmp_path, "r1", load_profile("laptop").profile)


def test_a_missing_prompt_file_is_refused(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["resume", "r1", "--set", "prompts.train=/nowhere/prompts.jsonl"]
    assert run_cli(words) == EXIT_USAGE
    assert "/nowhere/prompts.jsonl" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "machine"), [([], False), (["--from", "validate"], True), (["--set", "serve.port=7"], True)]
)
def test_ports_and_disk_are_asked_for_where_validate_runs_again(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, words: list[str], machine: bool
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        "tasks.validate.inputs.check_inputs", lambda profile, root, machine, trains: asked.append(machine)
    )
    folder = run.stage(VALIDATE)
    folder.clear()
    report = ValidationReport(facts={}, checks=(), worst="pass")
    folder.complete(report, fingerprint(VALIDATE, run.profile(), {}), {}, 1.0)
    assert run_cli(["resume", "r1", *words]) == EXIT_DONE
    assert asked == [machine]


@pytest.mark.parametrize(
    ("facts", "flow", "trains"),
    [
        ({}, "retrain_dspark", [True]),
        ({"evaluates": {"draft": ["/d", "d", None]}}, "evaluate_dspark", [False]),
        ({"evaluates": {"arms": []}}, "evaluate_dspark", []),
    ],
)
def test_a_run_goes_on_with_the_flow_that_began_it(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any], flow: str, trains: list[bool]
) -> None:
    asked: list[bool] = []
    started: list[str] = []
    monkeypatch.setattr(
        "tasks.validate.inputs.check_inputs", lambda profile, root, machine, trains: asked.append(trains)
    )
    monkeypatch.setattr(
        "flows.cli.pipeline.run_pipeline", lambda flow_name, **_: started.append(flow_name) or EXIT_DONE
    )
    run.remember(**facts)
    assert run_cli(["resume", "r1"]) == EXIT_DONE
    assert started == [flow] and asked == trains
