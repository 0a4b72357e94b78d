"""Dead captures are told from live ones by a lock that the kernel drops."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.errors import ServiceError
from tasks.stream.claims import Claim, dead_runs

ROOT = Path(__file__).parents[4]
HOLD = (
    "import sys, pathlib, tasks.stream.claims as c; "
    "held = c.Claim(pathlib.Path(sys.argv[1]), 'run-9', 'store:1'); "
    "print('held', flush=True); sys.stdin.read()"
)


def test_killed_client_is_dead_and_a_waiting_one_is_not(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None and client.stdout.readline() == b"held\n"
        assert list(dead_runs(tmp_path, "store:1")) == []
        with pytest.raises(ServiceError, match="run-9"):
            Claim(tmp_path, "run-9", "store:1")
        client.send_signal(signal.SIGKILL)
        client.wait()
    assert list(dead_runs(tmp_path, "store:2")) == [], "its objects are in another store"
    assert list(dead_runs(tmp_path, "store:1")) == ["run-9"]
    assert list(dead_runs(tmp_path, "store:1")) == [], "it was swept"


def test_claim_that_was_not_emptied_stays_for_the_next_start(tmp_path: Path) -> None:
    Claim(tmp_path, "run-1", "store:1").release(is_empty=False)
    again = Claim(tmp_path, "run-1", "store:2")
    assert again.inherited == "store:1"
    again.release(is_empty=True)
    assert not list(tmp_path.iterdir())


def test_unreadable_claim_names_no_run(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    (tmp_path / "b.json").write_text(json.dumps([1]))
    assert list(dead_runs(tmp_path, "store:1")) == []
