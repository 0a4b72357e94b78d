"""Collectors observe the real machine, and never raise."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from profiles.schema import Profile, Serve, Store, Target
from tasks.validate import collectors
from tasks.validate.collect.software import library_error
from tasks.validate.collectors import collect, network_facts
from tasks.validate.requirements import asked_ports


def profile(**parts: object) -> Profile:
    return Profile.model_validate(
        {"name": "t", "target": Target(model="m", aux_layer_ids=(2,)).model_dump(), **parts}
    )


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
    def broken(run_folder: Path) -> None:
        raise PermissionError("the disk is not ours")

    monkeypatch.setattr(collectors, "disk_facts", broken)
    facts = collect(profile(), tmp_path)
    assert facts.errors == {"disk": "PermissionError: the disk is not ours"}
    assert facts.disk.run_root_free_bytes is None and facts.host.cores


@pytest.mark.skipif(Path("/proc/driver/nvidia/version").exists(), reason="this machine has an NVIDIA driver")
def test_nvidia_mode_here_finds_no_driver(tmp_path: Path) -> None:
    """A machine without GPUs is no error: there is no driver, and none enumerated."""
    facts = collect(profile(hardware={"mode": "nvidia"}), tmp_path)
    assert (facts.driver.loaded, facts.driver.module_flavour, facts.gpus) == (False, "none", ())
    assert not any("gpu" in path or "driver" in path for path in facts.errors)


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
