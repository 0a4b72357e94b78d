"""Operating system, kernel module, PCI bus, toolkit, weights, from a tree of files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from node_files import OPEN, PROPRIETARY, tray, write
from smi_text import path_with, program

from tasks.validate.collect.nccl import version
from tasks.validate.collect.request import ProbeRequest
from tasks.validate.collect.system import system_findings
from tasks.validate.collect.toolkit import toolkit_findings
from tasks.validate.collect.weights import weights_findings


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProbeRequest:
    """A tray's files; `modinfo` and `nvcc` are not installed."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    tray(tmp_path)
    return ProbeRequest(root=str(tmp_path))


def test_a_tray(node: ProbeRequest) -> None:
    found = system_findings(node)
    system, driver, host = found.facts["os"], found.facts["driver"], found.facts["host"]
    assert (system["id"], system["version_id"], system["version"]) == (
        "ubuntu",
        "24.04",
        "24.04.4 LTS (Noble Numbat)",
    )
    assert driver == {"kmd_version": "610.57.04", "module_flavour": "open"}
    assert (host["numa_nodes"], host["mem_total_mib"], host["memory_available_bytes"]) == (
        34,
        960,
        900000 * 1024,
    )
    assert found.facts["gpus_on_pci"] == 4


def test_a_proprietary_module_and_gpus_only_on_the_bus(node: ProbeRequest) -> None:
    """FC-002: the bus shows four, whatever the driver does."""
    tray(Path(node.root), PROPRIETARY)
    found = system_findings(node)
    assert found.facts["driver"] == {"kmd_version": "580.126.20", "module_flavour": "proprietary"}
    assert found.facts["gpus_on_pci"] == 4


def test_no_module(node: ProbeRequest) -> None:
    node.path("/proc/driver/nvidia/version").unlink()
    assert system_findings(node).facts["driver"] == {"module_flavour": "none"}


def test_a_module_of_unknown_words_has_no_flavour(node: ProbeRequest) -> None:
    write(Path(node.root), {"/proc/driver/nvidia/version": "NVRM version: something else  999.1  today\n"})
    assert system_findings(node).facts["driver"] == {"kmd_version": "999.1"}


def test_licence_by_modinfo(node: ProbeRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    program(Path(node.root) / "bin", 'test "$*" = "-F license nvidia" && echo "Dual MIT/GPL"', "modinfo")
    assert system_findings(node).facts["driver"]["module_license"] == "Dual MIT/GPL"
    assert OPEN.startswith("NVRM")


def test_without_gpus_nothing_of_nvidia_is_read(node: ProbeRequest) -> None:
    found = system_findings(ProbeRequest(root=node.root, gpus=False))
    assert "driver" not in found.facts and "gpus_on_pci" not in found.facts


def toolkit(root: Path, version: str, folder: str = "/usr/local/cuda") -> None:
    write(root, {f"{folder}/version.json": json.dumps({"cuda": {"name": "CUDA SDK", "version": version}})})


def test_toolkit_of_version_json(node: ProbeRequest) -> None:
    toolkit(Path(node.root), "13.4.0")
    assert toolkit_findings(node, {}).facts["cuda"] == {"toolkit": "13.4.0"}


def test_cuda_home_comes_first(node: ProbeRequest) -> None:
    toolkit(Path(node.root), "13.0.2")
    toolkit(Path(node.root), "13.4.1", "/opt/cuda-13.4")
    assert toolkit_findings(node, {"CUDA_HOME": "/opt/cuda-13.4"}).facts["cuda"] == {"toolkit": "13.4.1"}


def test_toolkit_of_nvcc_alone(node: ProbeRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    program(Path(node.root) / "bin", "echo 'Cuda compilation tools, release 13.4, V13.4.27'", "nvcc")
    monkeypatch.setenv("PATH", path_with(Path(node.root) / "bin"))
    assert toolkit_findings(node, {}).facts["cuda"] == {"toolkit": "13.4"}


def test_an_unreadable_version_is_an_error(node: ProbeRequest) -> None:
    write(Path(node.root), {"/usr/local/cuda/version.json": '{"cuda": '})
    found = toolkit_findings(node, {})
    assert "cuda" not in found.facts and "version.json" in found.errors["cuda.toolkit"]


def test_no_toolkit(node: ProbeRequest) -> None:
    assert toolkit_findings(node, {}).facts == {}


@pytest.mark.parametrize("by", ["environment", "listing"])
def test_compatibility_package(node: ProbeRequest, by: str) -> None:
    folder = "/usr/local/cuda-13.4/compat"
    write(Path(node.root), {f"{folder}/libcuda.so.1": ""})
    environment = {"LD_LIBRARY_PATH": f"/usr/lib:{folder}"} if by == "environment" else {}
    if by == "listing":
        write(Path(node.root), {"/etc/ld.so.conf.d/compat.conf": f"{folder}\n"})
    assert toolkit_findings(node, environment).facts["cuda"] == {"compat_package": "cuda-compat-13-4"}


def test_an_empty_compatibility_folder_changes_nothing(node: ProbeRequest) -> None:
    assert toolkit_findings(node, {"LD_LIBRARY_PATH": "/usr/local/cuda-13.4/compat"}).facts == {}


def test_weights(tmp_path: Path) -> None:
    empty = weights_findings(ProbeRequest(root=str(tmp_path), weights_path="/models/k3"))
    assert empty.facts["host"]["weights_present"] is False and empty.facts["host"]["weights_path_free_gb"] > 0
    write(tmp_path, {"/models/k3/config.json": "{}", "/models/k3/model-1.safetensors": ""})
    assert weights_findings(ProbeRequest(root=str(tmp_path), weights_path="/models/k3")).facts["host"][
        "weights_present"
    ]


@pytest.mark.parametrize(("code", "words"), [(22809, "2.28.9"), (21805, "2.18.5"), (2708, "2.7.8")])
def test_nccl_version(code: int, words: str) -> None:
    assert version(code) == words
