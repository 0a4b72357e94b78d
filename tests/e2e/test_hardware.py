"""Doctor and checks on this machine: `make verify PART=hardware`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tasks.run_folder import RUNS_ENV

pytestmark = [pytest.mark.verify("hardware"), pytest.mark.timeout(1800)]
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(sys.executable).parent / "retrain-dspark"
NO_ROUND_TRIP = ("--set", "hardware.store_roundtrip=false")
PROBE_LIMIT_S, ROUND_TRIP_LIMIT_S = 3.0, 30.0


def doctor(root: Path, *words: str) -> tuple[int, dict[str, Any], float]:
    """Exit code, report and seconds of `retrain-dspark doctor --json`."""
    began = time.monotonic()
    done = subprocess.run(
        (str(PROGRAM), "doctor", "--json", *words),
        env={**os.environ, RUNS_ENV: str(root)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    seconds = time.monotonic() - began
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout), seconds


def ids(report: dict[str, Any], status: str) -> list[str]:
    return sorted({check["id"] for check in report["checks"] if check["status"] == status})


def test_laptop_profile_passes_here(tmp_path: Path, record_property: Any) -> None:
    """The laptop profile passes on a machine without a GPU, with the store's round trip, within 30 s"""
    code, report, seconds = doctor(tmp_path, "-p", "laptop")
    record_property("seconds", f"{seconds:.1f}")
    record_property("pass", len(ids(report, "pass")))
    record_property("skip", len(ids(report, "skip")))
    assert (code, ids(report, "fail")) == (0, [])
    assert "store.roundtrip" in ids(report, "pass")
    assert seconds < ROUND_TRIP_LIMIT_S


@pytest.mark.parametrize("profile", ["laptop", "gb300-kimi-k3"])
def test_collecting_and_checking_is_quick(profile: str, tmp_path: Path, record_property: Any) -> None:
    """Collecting and checking one node takes under 3 s without the round trip"""
    times = sorted(doctor(tmp_path, "-p", profile, *NO_ROUND_TRIP)[2] for _ in range(5))
    record_property("median_s", f"{times[2]:.2f}")
    record_property("slowest_s", f"{times[-1]:.2f}")
    assert times[2] < PROBE_LIMIT_S


def test_gb300_profile_fails_here(tmp_path: Path, record_property: Any) -> None:
    """The GB300 profile fails without a GPU by driver.loaded and gpu.count; no other GPU check fails"""
    code, report, _ = doctor(tmp_path, "-p", "gb300-kimi-k3")
    failed = ids(report, "fail")
    record_property("failed", " ".join(failed))
    assert code == 1
    assert {"driver.loaded", "gpu.count"} <= set(failed)
    about_gpus = {id for id in failed if id.startswith(("gpu.", "driver.", "nvlink.", "cuda."))}
    assert about_gpus == {"driver.loaded", "gpu.count"}


@pytest.mark.parametrize(
    ("what", "paths"),
    [
        ("scenarios, properties and field cases", ["tests/unit/tasks/validate"]),
        ("the path between two network namespaces", ["tests/integration/test_store_roundtrip_hosts.py"]),
        ("the path on loopback", ["tests/integration/test_store_roundtrip.py"]),
    ],
    ids=["scenarios", "hosts", "loopback"],
)
def test_tests_of_the_checks(what: str, paths: list[str], record_property: Any) -> None:
    """Tests of checks, collectors and the store's path pass, none of the path's is skipped"""
    done = subprocess.run(
        (sys.executable, "-m", "pytest", "-q", "-m", "not verify", *paths),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    record_property(what, done.stdout.strip().splitlines()[-1])
    assert done.returncode == 0, done.stdout[-3000:]
    if "integration" in paths[0]:
        assert not re.search(r"\d+ skipped", done.stdout), done.stdout[-1000:]
