"""RDMA, network, IMEX and the kernel log."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from node_files import rdma_port, write
from smi_text import path_with, program

from tasks.validate.collect.imex import imex_findings
from tasks.validate.collect.network import network_findings
from tasks.validate.collect.rdma import rdma_findings
from tasks.validate.collect.request import ProbeRequest
from tasks.validate.collect.xid import xid_findings


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProbeRequest:
    """A node whose programs are those of a folder of its own, in front of PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", path_with(folder))
    return ProbeRequest(root=str(tmp_path), deadline_s=6.0)


def put(node: ProbeRequest, name: str, body: str) -> None:
    program(Path(node.root) / "bin", body, name)


def test_an_rdma_port(node: ProbeRequest) -> None:
    rdma_port(Path(node.root), "mlx5_0")
    assert rdma_findings(node).facts["rdma"] == [
        {
            "device": "mlx5_0",
            "port": 1,
            "hca_type": "MT4131",
            "fw": "40.45.1020",
            "state": "ACTIVE",
            "phys_state": "LinkUp",
            "link_layer": "InfiniBand",
            "rate_gbps": 800.0,
            "uverbs": True,
            "numa": 1,
            "link_downed": 2,
            "gid_ok": True,
            "subnet": "fe80:0000:0000:0001",
        }
    ]


def test_ports_that_cannot_be_used_are_told_apart(node: ProbeRequest) -> None:
    """FC-010: two subnets, a port that is down, one of an unknown layer, one without a GID or device node."""
    root = Path(node.root)
    rdma_port(root, "mlx5_0")
    rdma_port(root, "mlx5_1", gid="fe80:0000:0000:0002:0011:2233:4455:6677")
    rdma_port(root, "mlx5_2", state="1: DOWN", phys="2: Polling", rate="25 Gb/sec (1X EDR)")
    rdma_port(root, "mlx5_3", layer="Unknown", uverbs=False)
    rdma_port(root, "mlx5_4", layer="Ethernet", gid="0000:0000:0000:0000:0000:ffff:0a00:0001")
    rdma_port(root, "mlx5_5", gid="fe80:0000:0000:0000:0000:0000:0000:0000")
    ports = {port["device"]: port for port in rdma_findings(node).facts["rdma"]}
    assert [ports[f"mlx5_{n}"]["subnet"] for n in (0, 1)] == ["fe80:0000:0000:0001", "fe80:0000:0000:0002"]
    down = ports["mlx5_2"]
    assert (down["state"], down["phys_state"], down["rate_gbps"]) == ("DOWN", "Polling", 25.0)
    assert (ports["mlx5_3"]["link_layer"], ports["mlx5_3"]["uverbs"]) == ("Unknown", False)
    assert (ports["mlx5_4"]["gid_ok"], ports["mlx5_4"]["subnet"]) == (True, None)
    assert ports["mlx5_5"]["gid_ok"] is False


def test_attributes_that_a_device_does_not_have(node: ProbeRequest) -> None:
    write(Path(node.root), {"/sys/class/infiniband/irdma0/ports/1/state": "4: ACTIVE\n"})
    port = rdma_findings(node).facts["rdma"][0]
    assert (port["state"], port["fw"], port["numa"], port["rate_gbps"]) == ("ACTIVE", None, None, None)


def test_a_device_that_cannot_be_listed_leaves_the_others(node: ProbeRequest) -> None:
    rdma_port(Path(node.root), "mlx5_1")
    write(Path(node.root), {"/sys/class/infiniband/mlx5_0/hca_type": "MT4131\n"})
    found = rdma_findings(node)
    assert [port["device"] for port in found.facts["rdma"]] == ["mlx5_1"]
    assert "FileNotFoundError" in found.errors["rdma.mlx5_0"]


def test_no_rdma_device_is_a_fact(node: ProbeRequest) -> None:
    assert rdma_findings(node).facts == {"rdma": []}


def test_address_that_the_run_gives(node: ProbeRequest) -> None:
    request = ProbeRequest(root=node.root, data_ip="192.0.2.7")
    assert network_findings(request, {}).facts["net"]["data_ip"] == "192.0.2.7"
    named = {"MOONCAKE_LOCAL_HOSTNAME": "192.0.2.8"}
    assert network_findings(node, named).facts["net"]["data_ip"] == "192.0.2.8"


def test_address_from_which_the_master_is_reached(node: ProbeRequest) -> None:
    with socket.socket() as master:
        master.bind(("127.0.0.1", 0))
        master.listen()
        request = ProbeRequest(root=node.root, master=f"127.0.0.1:{master.getsockname()[1]}")
        net = network_findings(request, {}).facts["net"]
    assert (net["data_ip"], net["master_reachable"]) == ("127.0.0.1", True)


def test_a_closed_port_of_the_master(node: ProbeRequest) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    found = network_findings(ProbeRequest(root=node.root, master=f"127.0.0.1:{port}"), {})
    assert found.facts["net"]["master_reachable"] is False
    assert f"127.0.0.1:{port}" in found.errors["net.master_reachable"]


def test_a_host_name_that_does_not_resolve(node: ProbeRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-host.invalid")
    found = network_findings(node, {})
    assert (
        "resolved_ip" not in found.facts["net"] and found.facts["net"]["hostname"] == "no-such-host.invalid"
    )
    assert "no-such-host.invalid" in found.errors["net.resolved_ip"]


@pytest.mark.parametrize(("word", "forced"), [("true", True), ("1", True), ("0", False), ("", False)])
def test_settings_of_the_store(node: ProbeRequest, word: str, forced: bool) -> None:
    net = network_findings(node, {"MC_FORCE_TCP": word, "MC_GID_INDEX": "3"}).facts["net"]
    assert (net["mc_force_tcp"], net["mc_gid_index"]) == (forced, 3)


DOMAIN = """{"nodes": {"0": {"status": "READY", "host": "a", "version": "610.57.04",
 "connections": {"1": {"status": "CONNECTED", "host": "b"}}},
 "1": {"status": "UNAVAILABLE", "host": "b", "version": "610.57.04", "connections": {}}},
 "status": "DEGRADED"}"""
TABLE = """Nodes:
Node #0   * 192.0.2.1 *   - READY          - Version: 610.57.04
Node #1   - 192.0.2.2     - READY          - Version: 610.57.04
Domain State: UP
"""


def test_imex_domain_of_json(node: ProbeRequest) -> None:
    write(Path(node.root), {"/dev/nvidia-caps-imex-channels/channel0": ""})
    put(node, "nvidia-imex-ctl", f"test \"$*\" = '-N -j' && cat <<'EOT'\n{DOMAIN}\nEOT")
    assert imex_findings(node).facts["imex"] == {
        "channels": ["channel0"],
        "domain_state": "DEGRADED",
        "ready_nodes": 1,
        "daemon_version": "610.57.04",
    }


def test_imex_domain_of_a_table(node: ProbeRequest) -> None:
    put(node, "nvidia-imex-ctl", f"cat <<'EOT'\n{TABLE}EOT")
    imex = imex_findings(node).facts["imex"]
    assert (imex["domain_state"], imex["ready_nodes"], imex["daemon_version"]) == ("UP", 2, "610.57.04")


def test_no_imex_daemon_is_a_fact(node: ProbeRequest) -> None:
    """FC-005: a node without the program is no faulty node."""
    found = imex_findings(node)
    assert (found.facts, found.errors) == ({"imex": {"channels": []}}, {})


def test_an_imex_daemon_that_does_not_answer(node: ProbeRequest) -> None:
    put(node, "nvidia-imex-ctl", "echo 'Connection to nvidia-imex failed' >&2; exit 1")
    found = imex_findings(node)
    assert "domain_state" not in found.facts["imex"]
    assert "Connection to nvidia-imex failed" in found.errors["imex.domain_state"]


JOURNAL = """2026-11-30T06:00:01+0000 n kernel: Linux version 6.14.0-1011-nvidia-64k
2026-11-30T06:04:17+0000 n kernel: NVRM: Xid (PCI:0008:06:00): 79, pid=1234, GPU has fallen off the bus.
2026-11-30T06:05:00+0000 n kernel: NVRM: Xid (PCI:0009:06:00): 13, Graphics Exception
"""


def test_xids_of_the_journal(node: ProbeRequest) -> None:
    put(node, "journalctl", f"cat <<'EOT'\n{JOURNAL}EOT")
    assert xid_findings(node).facts["host"]["xids"] == [
        {"code": 79, "gpu": "0008:06:00", "at": "2026-11-30T06:04:17+00:00"},
        {"code": 13, "gpu": "0009:06:00", "at": "2026-11-30T06:05:00+00:00"},
    ]


def test_xids_of_the_ring_buffer_where_the_journal_is_closed(node: ProbeRequest) -> None:
    put(node, "journalctl", "exit 0")
    put(node, "dmesg", "echo '2026-11-30T06:04:17,123456+00:00 NVRM: Xid (PCI:0008:06:00): 48, DBE'")
    found = xid_findings(node)
    assert [xid["code"] for xid in found.facts["host"]["xids"]] == [48]
    assert found.sources["host"] == "dmesg"


def test_a_clean_log(node: ProbeRequest) -> None:
    put(node, "journalctl", "echo '2026-11-30T06:00:01+0000 n kernel: Linux version 6.14'")
    assert xid_findings(node).facts["host"]["xids"] == []


def test_a_log_that_may_not_be_read_is_not_a_clean_one(node: ProbeRequest) -> None:
    put(node, "journalctl", "exit 0")
    put(node, "dmesg", "echo 'dmesg: read kernel buffer failed: Operation not permitted' >&2; exit 1")
    found = xid_findings(node)
    assert found.facts == {} and found.not_supported == ["host.xids"]
    assert "Operation not permitted" in found.errors["host.xids"]


def test_a_log_that_hangs_is_not_observed(node: ProbeRequest) -> None:
    put(node, "journalctl", "exec sleep 60")
    put(node, "dmesg", "exit 1")
    request = ProbeRequest(root=node.root, deadline_s=0.6)
    found = xid_findings(request)
    assert found.not_supported == [] and "timed out after 0.2 s" in found.errors["host.xids"]
