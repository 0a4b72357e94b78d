"""A published folder's own `serve.sh` and `verify.py`, run by `ask`, in front of a fake engine."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from flows.cli.ask import command
from tasks.errors import PublishError
from tasks.publish.core import publish
from tasks.run_folder import RUNS_ENV

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "unit" / "tasks" / "publish"))
from drafts import publish_inputs  # noqa: E402

ENGINE = """#!/usr/bin/env bash
if [ "$1" != -m ]; then exec {python} "$@"; fi
echo "$@" > {log}
exec {python} {fake} "${{@:3}}"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A published draft; its script finds a Python that starts the fake engine."""
    monkeypatch.setenv(RUNS_ENV, str(tmp_path / "runs"))
    python = tmp_path / "python"
    fake = TESTS / "fakes" / "speculating_server.py"
    python.write_text(ENGINE.format(python=sys.executable, fake=fake, log=tmp_path / "argv"))
    python.chmod(0o700)
    monkeypatch.setenv("PYTHON", str(python))
    (tmp_path / "target").mkdir()
    return Path(publish(**publish_inputs(tmp_path)).location)


def test_ask_serves_the_folder_by_its_own_script_and_ends_it(folder: Path, tmp_path: Path) -> None:
    """Started by the script, answered, checked by the list of rounds that the server was asked for, ended."""
    before = set(psutil.Process().children(recursive=True))
    done = CliRunner().invoke(
        command, ["hello", str(folder), "--target", str(tmp_path / "target"), "--max-tokens", "20"]
    )
    assert done.exit_code == 0, (done.output, done.exception)
    assert "20 tokens in" in done.output and "tau" in done.output
    assert "agreed: the response's list, the stream's chunks and the counters" in done.output
    words = (tmp_path / "argv").read_text().split()
    assert words[words.index("--model") + 1] == str(tmp_path / "target")
    assert words[words.index("--host") + 1] == "127.0.0.1"
    left = {one for one in psutil.Process().children(recursive=True) if one.is_running()} - before
    assert not [one for one in left if "speculating_server" in " ".join(one.cmdline())]


def test_a_damaged_folder_is_not_served(folder: Path, tmp_path: Path) -> None:
    with open(folder / "model.safetensors", "r+b") as stream:
        stream.seek(-1, 2)
        stream.write(b"\x01")
    done = CliRunner().invoke(command, ["hello", str(folder), "--target", str(tmp_path / "target")])
    assert isinstance(done.exception, PublishError) and "model.safetensors" in str(done.exception)
    assert not (tmp_path / "argv").exists()
