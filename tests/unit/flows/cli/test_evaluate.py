"""`retrain-dspark evaluate`: what it hands to the flow, and what it refuses before a run exists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flows.cli import pipeline
from flows.cli.main import run_cli
from tasks.errors import EXIT_DONE, EXIT_FAILED, EXIT_USAGE
from tasks.run_folder import RUNS_ENV

URLS = ("--arm", "none=http://127.0.0.1:1", "--arm", "draft=http://127.0.0.1:2/v1")


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Calls of the flow; none is run."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    monkeypatch.setenv(RUNS_ENV, str(tmp_path / "runs"))
    monkeypatch.setattr(pipeline, "run_pipeline", lambda *words, **named: calls.append((words, named)) or 0)
    return calls


def test_arms_and_keys_reach_the_flow_by_name(started: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFT_KEY", "k")
    code = run_cli(
        ["evaluate", *URLS, "--arm-key-env", "draft=DRAFT_KEY", "--json", "--prompts", "set:speed_bench"]
    )
    assert code == EXIT_DONE
    ((words, named),) = started
    assert words == () and (named["flow_name"], named["as_json"]) == ("evaluate_dspark", True)
    assert named["arms"] == {"none": "http://127.0.0.1:1", "draft": "http://127.0.0.1:2/v1"}
    assert named["arm_keys"] == {"draft": "DRAFT_KEY"} and named["prompts"] == ["set:speed_bench"]
    assert named["draft"] is None and named["profile"] == "laptop" and not named["full"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), EXIT_USAGE, "give a draft to serve, or arms that run already"),
        (("--draft", "nowhere"), EXIT_USAGE, "there is no draft folder 'nowhere'"),
        (("--arm", "draft"), EXIT_USAGE, "'draft' is not NAME=URL"),
        ((*URLS, "--arm-key-env", "draft=UNSET_KEY_9"), EXIT_USAGE, "UNSET_KEY_9 is not set"),
        ((*URLS, "--target", "/models/t"), EXIT_USAGE, "already have their target"),
        ((*URLS, "--set", "evaluate.load.concurency=[1]"), EXIT_USAGE, "did you mean concurrency"),
        ((*URLS, "-p", "laptp"), EXIT_USAGE, "did you mean 'laptop'"),
        (("--draft", "someone/draft"), EXIT_FAILED, "'someone/draft' cannot be fetched"),
        (("-p", "kimi-k3-published"), EXIT_FAILED, "'RedHatAI/Kimi-K3-speculator.dspark' cannot be fetched"),
    ],
)
def test_bad_input_is_said_before_a_run_exists(
    started: list[Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    code: int,
    said: str,
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("UNSET_KEY_9", raising=False)
    assert run_cli(["evaluate", *words]) == code
    shown = capsys.readouterr()
    assert said in shown.err and "Traceback" not in shown.err
    assert started == [] and not list(tmp_path.glob("runs/*/run.json"))
