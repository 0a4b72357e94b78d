"""`retrain-dspark evaluate` as a user types it, on servers that run: the flow, its record, its JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from loaded import loaded_server

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "from flows.cli import main; main()"


def evaluate(runs: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "RETRAIN_DSPARK_RUNS": str(runs), "ARM_KEY": "key-of-the-draft"}
    environment.pop("PREFECT_API_URL", None)
    return subprocess.run(
        (sys.executable, "-c", PROGRAM, *words),
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_servers_that_run_are_measured_and_a_resume_asks_nothing_again(tmp_path: Path) -> None:
    rows = [{"id": f"p{i}", "domain": "qa", "prompt": "word " * (i + 1)} for i in range(3)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    runs = tmp_path / "runs"
    with loaded_server() as plain, loaded_server("--draft", "4", key="key-of-the-draft") as draft:
        arms = ("--arm", f"none={plain.url}", "--arm", f"draft={draft.url}", "--arm-key-env", "draft=ARM_KEY")
        done = evaluate(runs, "evaluate", *arms, "--prompts", str(tmp_path / "prompts.jsonl"), "--json")
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        assert result["evaluation"]["live"]["pooled"]["value"] == 3.0
        assert result["evaluation"]["lossless"] == "identical"
        assert result["evaluation"]["arms_detail"]["tokens_per_step"] == {"plain": 1.0, "draft": 3.0}
        summary = result["summary"]
        assert summary["status"] == "completed" and summary["decision"]["promote"] is None
        assert {row["name"]: row["status"] for row in summary["stages"]}["evaluate"] == "completed"
        again = evaluate(runs, "resume", summary["run_id"])
        assert again.returncode == 0, again.stderr
        assert "evaluate: reused" in again.stdout and "measured after" in again.stdout
        assert plain.process.poll() is None and draft.process.poll() is None
    run = runs / summary["run_id"]
    assert json.loads((run / "run.json").read_text())["evaluates"]["arms"][1] == [
        "draft",
        draft.url,
        "ARM_KEY",
    ]
    assert not any(b"key-of-the-draft" in path.read_bytes() for path in run.rglob("*") if path.is_file())
    page = (run / "report.html").read_text()
    assert "<strong>Measured</strong>" in page and "Promoted" not in page
    assert "no server was started for it" in page and "Arms on the real engine" in page
