"""`retrain-dspark serve`: which target it serves, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from flows.cli.serve import command
from profiles.load import load_profile
from tasks.errors import UsageError
from tasks.publish.serving import serve_script, serve_settings
from tasks.run_folder import RUNS_ENV, create_run


@pytest.fixture
def draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A published folder without weights; what is wrong with it is not asked here."""
    monkeypatch.setenv(RUNS_ENV, str(tmp_path / "runs"))
    monkeypatch.delenv("TARGET", raising=False)
    monkeypatch.setattr("tasks.publish.verify.folder_problems", lambda folder: [])
    folder = tmp_path / "draft"
    folder.mkdir()
    settings = serve_settings(load_profile("laptop").profile, "0" * 64, "LlamaForCausalLM")
    settings["target"]["name"] = "mine"
    (folder / "serve.json").write_text(json.dumps(settings))
    (folder / "serve.sh").write_text(serve_script(settings))
    (folder / "manifest.json").write_text(json.dumps({"run_id": "20261130-laptop"}))
    return folder


def printed(*words: str) -> Result:
    return CliRunner().invoke(command, [*words, "--print"])


def test_the_target_is_that_of_the_drafts_run(draft: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    values: dict[str, Any] = load_profile("laptop").profile.model_dump(mode="json")
    values["target"] |= {"model": str(target), "source": {"kind": "path"}}
    create_run(tmp_path / "runs", "20261130-laptop", load_profile(values).profile)
    assert printed(str(draft), "--port", "8123").output.split()[1:] == [
        str(draft / "serve.sh"),
        str(target),
        "8123",
    ]


def test_a_target_that_is_given_comes_first(draft: Path) -> None:
    assert printed(str(draft), "--target", "/weights").output.split()[2:] == ["/weights", "8000"]


def test_an_unknown_target_is_asked_for(draft: Path) -> None:
    result = printed(str(draft))
    assert isinstance(result.exception, UsageError)
    assert "--target FOLDER" in str(result.exception)
    assert "mine" in str(result.exception)


def test_a_folder_without_a_draft_is_refused(draft: Path, tmp_path: Path) -> None:
    result = printed(str(tmp_path))
    assert isinstance(result.exception, UsageError)
    assert "serve.json" in str(result.exception)


def test_the_script_runs_with_bash(draft: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another shell, as `sh` is on Debian, does not know what the script needs."""
    python = draft / "python"
    python.write_text('#!/bin/sh\n[ "$1" = -m ] && echo "started $*" || echo "{}"\n')
    python.chmod(0o700)
    (draft / "verify.py").write_text("")
    started: list[tuple[str, ...]] = []
    monkeypatch.setattr("os.execvp", lambda program, words: started.append((program, *words)))
    CliRunner().invoke(command, [str(draft), "--target", "/weights", "--port", "8123"])
    assert [words[0] for words in started] == ["bash"]
    done = subprocess.run(
        started[0][1:],
        env={**os.environ, "PYTHON": str(python)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    assert "--model /weights --host 127.0.0.1 --port 8123" in done.stdout


def test_without_a_folder_the_champion_is_served(draft: Path, tmp_path: Path) -> None:
    """Also after a rollback: a newer version that is no longer the champion is not served."""
    result = printed("--target", "/weights")
    assert isinstance(result.exception, UsageError) and "nothing was published" in str(result.exception)
    place = tmp_path / "runs" / "published" / "tiny"
    for version in ("v0001", "v0002"):
        (place / version).mkdir(parents=True)
        (place / version / "serve.json").write_text((draft / "serve.json").read_text())
    (place / "champion").write_text("v0001\n")
    assert str(place / "v0001" / "serve.sh") in printed("--target", "/weights").output
