"""From the tools' own words to verdicts: what collectors read on a tray, judged by the checks."""

from __future__ import annotations

from pathlib import Path

import node_files
import pytest
from gb300_facts import bad, fleet, needs, result_of
from smi_text import Gpu, install, links, path_with, program, tray

from tasks.validate.collect.probe import probe
from tasks.validate.collect.request import ProbeRequest
from tasks.validate.facts import NodeFacts

SUPPORT = Path(__file__).parents[4] / "support"
COLLECTED = ("driver", "cuda", "gpus", "gpus_attached", "gpus_on_pci", "gpu_peers", "not_supported", "errors")
BASELINE = bad(fleet(), needs())
"""What even the healthy fleet of recorded facts does not pass."""


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProbeRequest:
    """A tray that only `nvidia-smi` speaks for."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", path_with(folder))
    for name in ("modinfo", "journalctl", "dmesg", "nvidia-imex-ctl", "nvcc"):
        program(folder, "exit 1", name)
    node_files.tray(tmp_path)
    version = '{"cuda": {"name": "CUDA SDK", "version": "13.4.0"}}'
    node_files.write(tmp_path, {"/usr/local/cuda/version.json": version})
    monkeypatch.setenv("CUDA_HOME", "/usr/local/cuda")
    speak(tmp_path, monkeypatch, "raise ImportError('not here')")
    install(folder, tray(), "R610")
    return ProbeRequest(node_id="train-0", role="train", root=str(tmp_path), gpu_deadline_s=5.0)


def speak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Put a module `pynvml` in front of an installed one."""
    folder = tmp_path / "python"
    folder.mkdir(exist_ok=True)
    (folder / "pynvml.py").write_text(f"import sys, time\nsys.path.insert(0, {str(SUPPORT)!r})\n{body}\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))


def with_collected(request: ProbeRequest) -> tuple[NodeFacts, ...]:
    """The healthy fleet, with what was collected in place of the training tray's GPUs and driver."""
    collected = probe(request)
    update = {name: getattr(collected, name) for name in COLLECTED}
    return tuple(one.model_copy(update=update) if one.node_id == "train-0" else one for one in fleet())


def smi(request: ProbeRequest, gpus: list[Gpu], shape: str = "R610", **more: str) -> None:
    install(Path(request.root) / "bin", gpus, shape, **more)  # type: ignore[arg-type]


def test_a_healthy_tray_through_nvidia_smi_raises_no_alarm(node: ProbeRequest) -> None:
    assert bad(with_collected(node), needs()) == BASELINE


def test_a_healthy_tray_through_nvml_raises_no_alarm(
    node: ProbeRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speak(tmp_path, monkeypatch, "from nvml_stand_in import Nvml\nsys.modules[__name__] = Nvml.healthy()")
    nodes = with_collected(node)
    assert bad(nodes, needs()) == BASELINE
    assert nodes[2].gpus and nodes[2].gpus[0].memory_used_mib == 12


def test_a_healthy_tray_of_r580_differs_by_its_driver_only(node: ProbeRequest) -> None:
    smi(node, tray(), "R580")
    assert bad(with_collected(node), needs()) == {**BASELINE, **R580}


R580 = {"driver.version": "warn", "versions.agree": "warn"}
"""Another driver than the tested one, and another than the serving trays have."""


def test_a_link_that_is_down(node: ProbeRequest) -> None:
    gpus = tray()
    gpus[2] = (
        gpus[2]
        .with_leaf("fabric/health/bandwidth", "Degraded")
        .with_leaf("fabric/health/summary", "Unhealthy")
    )
    smi(node, gpus, link_text=links(gpus, down=((2, 7),)))
    nodes = with_collected(node)
    assert bad(nodes, needs()) == {**BASELINE, "nvlink.links": "fail", "fabric.health": "fail"}
    assert "GPU2: link 7 is inactive" in result_of(nodes, needs(), "nvlink.links").message


def test_a_completed_fabric_without_success(node: ProbeRequest) -> None:
    """FC-003: GPU2 says completed, and everything else says no."""
    gpus = tray()
    zeros = "00000000-0000-0000-0000-000000000000"
    gpus[2] = gpus[2].with_leaf("fabric/status", "Insufficient Resources").with_leaf("fabric/cliqueId", "0")
    gpus[2] = gpus[2].with_leaf("fabric/clusterUuid", zeros)
    smi(node, gpus)
    nodes = with_collected(node)
    assert bad(nodes, needs()) == {**BASELINE, "fabric.state": "fail", "fabric.domain": "fail"}
    message = result_of(nodes, needs(), "fabric.state").message
    assert "GPU2: status Insufficient Resources, clique 0, cluster UUID of zeros" in message


def test_a_gpu_that_is_lost(node: ProbeRequest) -> None:
    left = [gpu for gpu in tray() if gpu.index != 1]
    smi(node, left)
    text = (Path(node.root) / "bin" / "smi.xml").read_text()
    (Path(node.root) / "bin" / "smi.xml").write_text(text.replace("<attached_gpus>3<", "<attached_gpus>4<"))
    found = bad(with_collected(node), needs())
    assert found == {**BASELINE, "gpu.count": "fail"}


def test_driver_and_library_that_differ_are_one_failure(node: ProbeRequest) -> None:
    """FC-001."""
    program(
        Path(node.root) / "bin",
        "echo 'Failed to initialize NVML: Driver/library version mismatch' >&2; exit 18",
    )
    nodes = with_collected(node)
    found = bad(nodes, needs())
    assert found["driver.loaded"] == "fail" and "gpu.count" not in found
    assert "differ" in result_of(nodes, needs(), "driver.loaded").message


def test_gpus_that_only_the_bus_shows(node: ProbeRequest) -> None:
    """FC-002: the message has both counts, the flavour, and the one that is needed."""
    node_files.tray(Path(node.root), node_files.PROPRIETARY)
    program(Path(node.root) / "bin", "echo 'No devices were found'; exit 0")
    nodes = with_collected(node)
    found = bad(nodes, needs())
    assert (found["gpu.count"], found["driver.open_module"]) == ("fail", "fail")
    message = result_of(nodes, needs(), "gpu.count").message
    assert "the PCI bus shows 4" in message and "proprietary" in message and "open" in message


def test_a_hung_probe_fails_one_node(
    node: ProbeRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speak(tmp_path, monkeypatch, "time.sleep(60)")
    program(tmp_path / "bin", "exec sleep 60")
    nodes = with_collected(ProbeRequest(node_id="train-0", root=node.root, gpu_deadline_s=0.5))
    result = result_of(nodes, needs(), "driver.loaded")
    assert (result.status, result.subject) == (
        "fail",
        "train-0",
    ) and "timed out after 0.5 s" in result.message
    assert result_of(nodes, needs(), "driver.loaded", "serve-0").status == "pass"


def test_a_refused_field_is_no_lost_gpu(node: ProbeRequest) -> None:
    """An error of one field must not count as an error of its GPU."""
    smi(node, [gpu.with_leaf("serial", "Insufficient Permissions") for gpu in tray()])
    assert bad(with_collected(node), needs()) == BASELINE
