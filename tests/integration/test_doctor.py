"""`retrain-dspark doctor` on this very machine: it fits the laptop profile, and no GB300 tray."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from observing import processes_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]
WITHOUT_GPU = pytest.mark.skipif(
    Path("/proc/driver/nvidia/version").exists(), reason="this machine has an NVIDIA driver"
)
GPU_GROUPS = ("gpu.", "nvlink.", "driver.", "cuda.", "xid.", "fabric.state", "fabric.health")


def doctor(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    return subprocess.run(
        (sys.executable, "-c", "from flows.cli.main import main; main()", "doctor", *words),
        cwd=folder,
        env={**kept, "RETRAIN_DSPARK_RUNS": str(folder / "runs"), "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_this_machine_passes_the_laptop_profile_and_so_does_its_record(tmp_path: Path) -> None:
    """With the round trip; then the record alone is judged, and leaves nothing but itself."""
    done = doctor(tmp_path, "-p", "laptop", "--record", "facts.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\npass  store.roundtrip " in done.stdout and "GB/s" in done.stdout
    assert "the profile runs without GPUs" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert "failed" not in last and last.endswith("this machine for the profile laptop")
    assert [path.name for path in tmp_path.iterdir()] == ["facts.json"]
    assert processes_of(tmp_path) == {}

    text = (tmp_path / "facts.json").read_text()
    record = json.loads(text)
    assert record["store"]["ran"] and record["node_id"].startswith("node-")
    assert f'"{platform.node()}"' not in text and str(Path(sys.executable).parent) not in text
    again = doctor(tmp_path, "-p", "laptop", "--facts", "facts.json")
    assert again.returncode == 0, again.stdout + again.stderr
    assert again.stdout.splitlines()[-1].endswith("recorded facts of 1 node for the profile laptop")


@WITHOUT_GPU
def test_this_machine_is_no_gb300_tray(tmp_path: Path) -> None:
    """No driver and no GPU are one failure each; what depends on them is not told again."""
    done = doctor(tmp_path, "--profile", "gb300-kimi-k3", "--json")
    assert done.returncode == 1, done.stderr
    checks = json.loads(done.stdout)["checks"]
    failed = {check["id"] for check in checks if check["status"] == "fail"}
    assert {id for id in failed if id.startswith(GPU_GROUPS)} == {"driver.loaded", "gpu.count"}
    assert failed >= {"fleet.nodes", "fabric.domain", "imex.ready"}
    assert all(check["remedy"] and check["message"] for check in checks if check["id"] in failed)
    (store,) = [check for check in checks if check["id"] == "store.roundtrip"]
    assert (store["status"], store["message"]) == ("skip", "another check failed before it")
    assert list(tmp_path.iterdir()) == [] and processes_of(tmp_path) == {}


@WITHOUT_GPU
def test_a_profile_of_other_gpus_fails_too(tmp_path: Path) -> None:
    done = doctor(tmp_path, "-p", "h200-qwen3-8b")
    assert done.returncode == 1
    failed = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("fail ")}
    assert {"driver.loaded", "gpu.count"} <= failed
    assert not failed & {"fabric.domain", "imex.ready", "nvlink.links", "fleet.nodes"}
    assert "to do: " in done.stdout
