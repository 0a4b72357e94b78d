"""`make bench` with tiny sizes: rows have the agreed fields, and both sides compute the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

BENCH = Path(__file__).resolve().parents[1] / "bench"
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import run
tiny = run.Size(64, 32, 16, 2, 3, 2, 4, 8, 6, 1)
run.main(["--json", sys.argv[2]], tiny)
"""


def test_rows_have_the_agreed_fields(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    command = [sys.executable, "-c", PROGRAM, str(BENCH), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads(out.read_text(encoding="utf-8"))
    assert [row["stage"] for row in rows] == ["train", "evaluate"]
    for row in rows:
        assert set(row) == {"stage", "name", "value", "baseline", "ratio", "goal", "unit", "conditions"}
        assert abs(row["ratio"] - row["value"] / row["baseline"]) < 0.01 * row["ratio"] + 0.001
        assert row["name"] in done.stdout
