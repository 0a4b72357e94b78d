"""Collectors observe the real machine, and never raise."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from profiles.schema import Profile, Serve, Store, Target
from tasks.validate import collectors
from tasks.validate.collectors import asked_ports, collect, gpu_facts, library_error, network_facts


def profile(**parts: object) -> Profile:
    return Profile.model_validate(
        {"name": "t", "target": Target(model="m", aux_layer_ids=(2,)).model_dump(), **parts}
    )


def program(tmp_path: Path, text: str) -> str:
    path = tmp_path / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_collect_reads_this_machine(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    facts = collect(profile(), tmp_path)
    assert facts.errors == {}
    assert facts.os.page_size_bytes == os.sysconf("SC_PAGESIZE")
    assert facts.host.memory_available_bytes and facts.disk.run_root_free_bytes
    assert facts.disk.run_folder_mode == 0o700
    assert facts.gpus is None and facts.driver.loaded is None
    assert facts.versions["retrain-dspark"]


def test_a_failing_collector_leaves_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise PermissionError("no /proc here")

    monkeypatch.setattr(collectors, "host_facts", broken)
    facts = collect(profile(), tmp_path)
    assert facts.errors == {"host": "PermissionError: no /proc here"}
    assert facts.host.cores is None


def test_gpu_absent(tmp_path: Path) -> None:
    answer = gpu_facts(str(tmp_path / "nothing"))
    assert (answer.gpus, answer.driver.loaded) == ((), False)


def test_gpu_answers(tmp_path: Path) -> None:
    answer = gpu_facts(program(tmp_path, "echo '0, NVIDIA H200, 143771, 570.86.15'"))
    assert answer.gpus is not None
    gpu = answer.gpus[0]
    assert (gpu.name, gpu.memory_total_mib, answer.driver.kmd_version) == ("NVIDIA H200", 143771, "570.86.15")


def test_gpu_driver_is_broken(tmp_path: Path) -> None:
    answer = gpu_facts(program(tmp_path, "echo 'NVIDIA-SMI has failed' >&2; exit 9"))
    assert (answer.error, answer.gpus) == ("NVIDIA-SMI has failed", None)


def test_a_hanging_gpu_probe_is_given_up(tmp_path: Path) -> None:
    assert "timed out" in gpu_facts(program(tmp_path, "exec sleep 60"), timeout_s=0.2).error


def test_nvidia_mode_here_never_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    facts = collect(profile(hardware={"mode": "nvidia"}), tmp_path)
    assert facts.gpus == () and "not installed" in facts.errors["gpus"]


def test_a_taken_port_names_its_field() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        facts = network_facts(profile(serve={"port": port}))
    assert facts.ports[f"serve.port={port}"]


def test_ports_of_a_server_that_is_attached_are_not_ours() -> None:
    attached = profile(
        serve=Serve(kind="attach", url="http://x", port=8000).model_dump(),
        store=Store(rpc_port=50051).model_dump(),
    )
    assert list(asked_ports(attached)) == ["store.rpc_port"]


def test_a_missing_library_says_why() -> None:
    assert library_error("libc.so.6") == ""
    assert "libnotthere" in library_error("libnotthere.so.1")
