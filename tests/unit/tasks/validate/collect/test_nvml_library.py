"""The real binding, nvidia-ml-py, on a library of our own: layouts of structures and missing symbols."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from smi_text import install, path_with, tray

from tasks.validate.collect.findings import Findings
from tasks.validate.collect.programs import ask
from tasks.validate.collect.request import ProbeRequest
from tasks.validate.collect.run import environment

SOURCE = Path(__file__).parents[4] / "fakes" / "nvml_library.c"
COMPILER = shutil.which("cc") or shutil.which("gcc")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the compiled library."""
    if COMPILER is None:
        pytest.skip("no C compiler: apt-get install gcc")
    folder = tmp_path_factory.mktemp("library")
    command = [COMPILER, "-shared", "-fPIC", "-o", str(folder / "libnvidia-ml.so.1"), str(SOURCE)]
    subprocess.run(command, check=True, timeout=60)
    return folder


def collected(name: str, library: Path) -> Findings:
    """Findings of one collector in a process that loads the library."""
    argv = (sys.executable, "-m", "tasks.validate.collect.child", name)
    more = {**environment(), "LD_LIBRARY_PATH": str(library)}
    answer = ask(argv, 30.0, ProbeRequest(gpu_deadline_s=5.0).to_json(), more)
    return Findings.from_json(answer.output)


def test_structures_and_missing_symbols(library: Path) -> None:
    pytest.importorskip("pynvml", reason="pip install nvidia-ml-py")
    found = collected("nvml", library)
    assert found.errors == {"gpus[1]": "GPU is lost"}
    (gpu,) = found.facts["gpus"]
    assert (gpu["name"], gpu["memory_total_mib"], gpu["memory_used_mib"]) == ("NVIDIA GB300", 284208, 12)
    assert gpu["fabric"] == {
        "state": "Completed",
        "health_mask": 0x1AA,
        "health_summary": "Healthy",
        "status": "Success",
        "cluster_uuid": "abababab-abab-abab-abab-abababababab",
        "clique_id": 32766,
    }
    place = {"chassis_serial": "1820000000001", "slot": 0x91, "tray": 2, "host_id": 1, "module_id": 4}
    assert gpu["platform"] == place
    states = [link["state"] for link in gpu["nvlinks"]]
    assert states.count("active") == 17 and states[7] == "active-traffic-disabled"
    assert gpu["nvlinks"][0]["speed_mb_s"] == 53125
    assert {"gpus[0].vbios", "gpus[0].mig_pending", "gpus[0].recovery_action"} <= set(found.not_supported)
    assert found.facts["driver"] == {"loaded": True, "kmd_version": "610.57.04", "umd_version": "610.57.04"}
    assert (found.facts["cuda"]["driver_api"], found.facts["gpus_attached"]) == (13030, 2)


def test_version_of_the_library_without_the_binding(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, tray(1), "R610")
    monkeypatch.setenv("PATH", path_with(tmp_path))
    found = collected("smi", library)
    assert found.facts["driver"]["umd_version"] == "610.57.04"
    assert "libnvidia-ml.so.1" in found.sources["driver"]
