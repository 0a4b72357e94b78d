"""The probe as a program: real processes, with a tray's files, its programs and a stand-in for NVML."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import node_files
import pytest
from smi_text import install, path_with, program, tray

from tasks.validate.collect.probe import probe
from tasks.validate.collect.request import ProbeRequest
from tasks.validate.collect.run import collect_all

SUPPORT = Path(__file__).parents[4] / "support"
ROOT = SUPPORT.parents[1]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProbeRequest:
    """A tray whose GPUs answer through `nvidia-smi`; `binding` puts an NVML beside it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", path_with(folder))
    for name in ("modinfo", "journalctl", "dmesg", "nvidia-imex-ctl"):
        program(folder, "exit 1", name)
    node_files.tray(tmp_path)
    node_files.rdma_port(tmp_path, "mlx5_0")
    binding(tmp_path, monkeypatch, "raise ImportError('not here')")
    install(folder, tray(), "R610")
    return ProbeRequest(
        node_id="serve-0", role="serve", root=str(tmp_path), gpu_deadline_s=5.0, deadline_s=5.0
    )


def binding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """A module `pynvml` in front of an installed one."""
    folder = tmp_path / "python"
    folder.mkdir(exist_ok=True)
    (folder / "pynvml.py").write_text(f"import sys, time\nsys.path.insert(0, {str(SUPPORT)!r})\n{body}\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))


STAND_IN = "from nvml_stand_in import Nvml\nsys.modules[__name__] = Nvml({arguments})"


def test_a_tray_through_nvidia_smi(node: ProbeRequest) -> None:
    facts = probe(node)
    assert (facts.node_id, facts.role, facts.collector) == ("serve-0", "serve", "nvidia_smi")
    assert facts.driver.loaded and facts.driver.kmd_version == "610.57.04"
    assert (facts.driver.module_flavour, facts.cuda.driver_api) == ("open", 13030)
    assert (len(facts.gpus or ()), facts.gpus_attached, facts.gpus_on_pci) == (4, 4, 4)
    assert facts.os.id == "ubuntu" and facts.host.numa_nodes == 34 and facts.rdma
    assert facts.gpu_peers and facts.gpu_peers[0].path == "NV18"
    assert not any("gpu" in path or "driver" in path for path in facts.errors)
    assert facts.sources["driver"].startswith("nvidia-smi --query-gpu")
    assert "retrain-dspark" in facts.versions and facts.programs.keys() == {"mooncake_master"}


def test_nvml_comes_first_and_the_rest_fills_its_gaps(
    node: ProbeRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binding(tmp_path, monkeypatch, STAND_IN.format(arguments="missing=('nvmlDeviceGetVbiosVersion',)"))
    facts = probe(node)
    assert facts.collector == "nvml" and len(facts.gpus or ()) == 4
    gpu = (facts.gpus or ())[0]
    assert (gpu.memory_used_mib, gpu.vbios) == (12, "97.10.4A.00.0D")
    assert facts.supported("gpus[0].vbios") and facts.driver.umd_version == "610.57.04"
    assert facts.gpu_peers and (facts.gpu_peers[0].path, facts.gpu_peers[0].nvlink_p2p) == ("NV18", "ok")
    assert (gpu.nvlinks or ())[0].remote == "switch"


def test_a_hung_nvml_is_given_up_and_the_rest_is_read(
    node: ProbeRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binding(tmp_path, monkeypatch, "time.sleep(3600)")  # longer than a test may take
    program(tmp_path / "bin", "exec sleep 3600")
    facts = probe(ProbeRequest(node_id="n", root=node.root, gpu_deadline_s=0.5, deadline_s=5.0))
    assert facts.errors["nvml"] == "timed out after 0.5 s"
    assert "nvml timed out after 0.5 s" in facts.errors["gpus"]
    assert (facts.gpus, facts.driver.loaded, facts.driver.module_flavour) == (None, None, "open")
    assert facts.os.id == "ubuntu" and facts.rdma


def test_a_binding_that_crashes_is_an_error_of_its_own(
    node: ProbeRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binding(tmp_path, monkeypatch, "import os\nos.abort()")
    facts = probe(node)
    assert "nvml" in facts.errors and len(facts.gpus or ()) == 4


def test_driver_and_library_that_differ_do_not_count_as_no_gpu(node: ProbeRequest) -> None:
    """FC-001."""
    program(
        Path(node.root) / "bin",
        "echo 'Failed to initialize NVML: Driver/library version mismatch' >&2; exit 18",
    )
    facts = probe(node)
    assert (facts.driver.loaded, facts.gpus) == (False, None)
    assert "differ" in facts.errors["driver"] and "reboot" in facts.errors["driver"]


def test_gpus_on_the_bus_that_nvml_does_not_list(node: ProbeRequest) -> None:
    """FC-002."""
    node_files.tray(Path(node.root), node_files.PROPRIETARY)
    program(Path(node.root) / "bin", "echo 'No devices were found'; exit 0")
    facts = probe(node)
    assert (facts.gpus, facts.gpus_on_pci, facts.driver.module_flavour) == ((), 4, "proprietary")
    assert facts.driver.loaded


def test_a_machine_without_a_driver(
    node: ProbeRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That there is no library is a fact, not an error."""
    node.path("/proc/driver/nvidia/version").unlink()
    (tmp_path / "bin" / "nvidia-smi").unlink()
    binding(tmp_path, monkeypatch, STAND_IN.format(arguments="init=12"))
    facts = probe(node)
    assert (facts.driver.loaded, facts.driver.module_flavour, facts.gpus) == (False, "none", ())
    assert not any("nvml" in path or "gpu" in path or "driver" in path for path in facts.errors)


def test_a_module_without_its_library(
    node: ProbeRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container that was started without its GPUs."""
    (tmp_path / "bin" / "nvidia-smi").unlink()
    binding(tmp_path, monkeypatch, STAND_IN.format(arguments="init=12"))
    facts = probe(node)
    assert (facts.driver.loaded, facts.gpus) == (False, None)
    assert "libnvidia-ml.so.1 is not found" in facts.errors["driver"]


def test_without_gpus_nobody_asks_for_them(node: ProbeRequest, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    program(tmp_path / "bin", f"touch {asked}")
    facts = probe(ProbeRequest(node_id="n", root=node.root, gpus=False))
    assert (facts.gpus, facts.driver.loaded, facts.errors) == (None, None, {})
    assert facts.os.id == "ubuntu" and not asked.exists()


def test_the_program_prints_one_document(node: ProbeRequest) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tasks.validate.collect.probe", "-"],
        input=node.to_json(),
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert (document["schema_version"], document["node_id"], len(document["gpus"])) == (1, "serve-0", 4)


def test_a_request_that_cannot_be_read(node: ProbeRequest) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tasks.validate.collect.probe", "-"],
        input='{"nod": 1}',
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "") and "not a probe's request" in done.stderr


def test_collectors_that_cannot_run_are_named(node: ProbeRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    found = collect_all(node)
    assert found.errors["system"] == "/no/such/python is not installed"
