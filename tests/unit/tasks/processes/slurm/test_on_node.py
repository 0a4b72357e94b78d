"""What runs on a node, run here: orders with secrets, addresses, ports, the end without a flow."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks.processes.slurm.on_node.hold import hold
from tasks.processes.slurm.on_node.network import interface_of, listens, own_address, take_port
from tasks.processes.slurm.on_node.start import environment_of
from tasks.processes.slurm.script import ON_NODE


def order_file(folder: Path, argv: list[str], **more: object) -> Path:
    order = {
        "argv": argv,
        "inherited": {"PATH": "/flow", "ONLY_HERE": "1"},
        "env": {"OWN": "spec"},
        "secret_env": {"API_KEY": "canary-51"},
        "started": str(folder / "started"),
        "cwd": "",
        "folders": [str(folder / "scratch")],
        "nodes": {"n1": {"address": "10.0.0.7", "interface": "ib0"}},
        **more,
    }
    path = folder / "order.json"
    path.write_text(json.dumps(order))
    path.chmod(0o600)
    return path


def test_an_order_is_read_once_and_its_secret_only_in_the_process(tmp_path: Path) -> None:
    """The file is gone, the secret is in the process's environment alone, all libraries get the interface."""
    shows = (
        "import os, sys; print(os.environ['API_KEY'], os.environ['GLOO_SOCKET_IFNAME'], os.environ['PATH'])"
    )
    path = order_file(tmp_path, [sys.executable, "-S", "-c", shows])
    node = {"SLURMD_NODENAME": "n1", "SLURM_STEP_ID": "3", "PATH": "/set-up/bin"}
    words = [sys.executable, "-I", "-S", str(ON_NODE / "start.py"), str(path)]
    done = subprocess.run(words, env=node, capture_output=True, text=True, check=False)
    assert done.stdout == "canary-51 ib0 /set-up/bin\n", done.stderr
    assert not path.exists() and (tmp_path / "scratch").is_dir()
    told = json.loads((tmp_path / "started").read_text())
    assert told["step"] == "3" and told["node"] == "n1" and told["pid"] > 1
    assert "canary-51" not in (tmp_path / "started").read_text()


def test_a_program_that_is_missing_is_named(tmp_path: Path) -> None:
    path = order_file(tmp_path, ["/no/such/program"])
    words = [sys.executable, "-I", "-S", str(ON_NODE / "start.py"), str(path)]
    node = {"SLURMD_NODENAME": "n1", "SLURM_STEP_ID": "3"}
    done = subprocess.run(words, env=node, capture_output=True, text=True, check=False)
    assert done.returncode == 127 and done.stderr == "/no/such/program: No such file or directory\n"


def test_the_order_wins_over_the_node_and_the_node_over_the_flow() -> None:
    order = {
        "inherited": {"A": "flow", "B": "flow", "C": "flow"},
        "env": {"VLLM_HOST_IP": "1.2.3.4"},
        "secret_env": {"C": "secret"},
        "nodes": {"n1": {"address": "fd00::7", "interface": ""}},
    }
    found = environment_of(order, {"B": "node"}, "n1")
    assert (found["A"], found["B"], found["C"]) == ("flow", "node", "secret")
    assert found["VLLM_HOST_IP"] == "1.2.3.4" and found["MC_USE_IPV6"] == "1"
    assert found["MOONCAKE_LOCAL_HOSTNAME"] == "fd00::7" and "NCCL_SOCKET_IFNAME" not in found


def test_the_fabric_address_is_the_interface_s() -> None:
    assert own_address("lo", "192.0.2.1") == own_address("", "127.0.0.1") == "127.0.0.1"
    assert interface_of("127.0.0.1") == "lo" and interface_of("203.0.113.9") == ""
    with pytest.raises(OSError, match="'no-such0' is not there or has no address"):
        own_address("no-such0", "")


def test_ports_that_are_free(tmp_path: Path) -> None:
    """A wanted port that is busy is refused; a range is searched; listeners are told apart by their owner."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        busy = server.getsockname()[1]
        assert take_port("127.0.0.1", busy, 0, 0) == 0
        assert take_port("127.0.0.1", 0, busy, busy) == 0
        assert take_port("127.0.0.1", 0, busy, busy + 50) in range(busy + 1, busy + 51)
        assert listens(os.getpid(), busy)
        other = subprocess.Popen(
            [sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
        )
        try:
            assert not listens(other.pid, busy)
        finally:
            other.communicate(b"\n")
    assert take_port("127.0.0.1", busy, 0, 0) == busy and not listens(os.getpid(), busy)


def test_a_job_is_held_while_the_flow_beats(tmp_path: Path) -> None:
    """It is the content that must change; the file's disappearance is no sign of life."""
    beat = tmp_path / "beat"
    beat.write_text("1")
    words = [sys.executable, "-I", "-S", str(ON_NODE / "hold.py"), str(beat), "2.5"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    for number in range(4):
        time.sleep(1.0)
        beat.write_text(f"alive {number}")
    assert process.poll() is None
    beat.unlink()
    assert "has not been heard of for 2.5 s" in process.communicate(timeout=20)[0]
    hold(str(beat), 0.0)
