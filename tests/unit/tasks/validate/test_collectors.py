"""Every node is asked what concerns it, all at once; a fabric in progress is waited for, but not for ever."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from profiles.schema import Profile, Serve, Target
from profiles.store import Store
from tasks.processes.launcher import LocalLauncher
from tasks.processes.nodes import Node
from tasks.validate.collect import child
from tasks.validate.collect.nodes import Probe
from tasks.validate.collect.request import ProbeRequest
from tasks.validate.collect.software import library_error
from tasks.validate.collectors import collect_plan, request_of, user_facts
from tasks.validate.facts import NodeFacts
from tasks.validate.gpu_facts import Fabric, GpuFacts
from tasks.validate.requirements import asked_ports


def profile(**parts: object) -> Profile:
    return Profile.model_validate(
        {"name": "t", "target": Target(model="m", aux_layer_ids=(2,)).model_dump(), **parts}
    )


def this_machine(tmp_path: Path, **parts: object) -> NodeFacts:
    wanted = profile(**parts)
    nodes = LocalLauncher().nodes(wanted)
    requests = [request_of(wanted, node, tmp_path / "runs", tmp_path) for node in nodes]
    (facts,) = collect_plan(nodes, requests, 0.0, lambda line: None)
    return facts


def test_this_machine_plays_all_roles_and_is_read(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    facts = this_machine(tmp_path)
    assert facts.errors == {} and facts.role == "serve+train"
    assert facts.os.page_size_bytes == os.sysconf("SC_PAGESIZE")
    assert facts.host.memory_available_bytes and facts.disk.run_root_free_bytes
    assert (facts.disk.run_folder_writable, facts.disk.run_folder_mode) == (True, 0o700)
    assert facts.net.loopback_addresses and facts.net.data_ip == "127.0.0.1"
    assert facts.gpus is None and facts.driver.loaded is None
    assert facts.versions["retrain-dspark"]


@pytest.mark.skipif(Path("/proc/driver/nvidia/version").exists(), reason="this machine has an NVIDIA driver")
def test_nvidia_mode_here_finds_no_driver(tmp_path: Path) -> None:
    """A machine without GPUs is no error: there is no driver, and none enumerated."""
    facts = this_machine(tmp_path, hardware={"mode": "nvidia"})
    assert (facts.driver.loaded, facts.driver.module_flavour, facts.gpus) == (False, "none", ())
    assert not any("gpu" in path or "driver" in path for path in facts.errors)


def test_what_a_user_can_put_right_is_read_without_the_rest(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        facts = user_facts(profile(serve={"port": port}), tmp_path)
    assert str(os.getpid()) in facts.net.ports[f"serve.port={port}"]
    assert facts.disk.run_root_free_bytes and facts.disk.cache_free_bytes
    assert facts.driver.loaded is None and facts.versions == {}


def test_a_disk_that_cannot_be_read_leaves_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: Path) -> int:
        raise PermissionError("the disk is not ours")

    monkeypatch.setattr("tasks.validate.collect.disk._free_bytes", broken)
    facts = user_facts(profile(), tmp_path)
    assert facts.errors == {"disk": "PermissionError: the disk is not ours"}
    assert facts.disk.run_root_free_bytes is None and facts.net.loopback_addresses


def test_the_free_space_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    request = ProbeRequest(run_root=str(tmp_path / "a" / "b"), run_folder=str(tmp_path / "a" / "b" / "r"))
    disk = child.collect_one("disk", request).facts["disk"]
    assert disk["run_root_free_bytes"] > 0
    assert disk["run_folder_writable"] is False and "run_folder_mode" not in disk


def test_a_request_survives_its_way_to_a_node(tmp_path: Path) -> None:
    wanted = profile(store={"host": "10.0.0.1", "rpc_port": 50051})
    request = request_of(wanted, Node("serve-0", "serve", "10.0.0.1"), tmp_path)
    back = ProbeRequest.from_json(request.to_json())
    assert json.loads(back.to_json()) == json.loads(request.to_json())
    assert {field: tuple(place) for field, place in back.ports.items()} == {
        "store.rpc_port": ("10.0.0.1", 50051)
    }


def test_only_serving_nodes_are_asked_for_the_servers_ports(tmp_path: Path) -> None:
    wanted = profile(store={"rpc_port": 50051}, serve={"port": 8000})
    ports = {
        role: set(request_of(wanted, Node("n", role), tmp_path).ports)  # type: ignore[arg-type]
        for role in ("serve", "train", "serve+train")
    }
    both = {"store.rpc_port", "serve.port"}
    assert ports == {"serve": both, "train": set(), "serve+train": both}


def test_ports_of_a_server_that_is_attached_are_not_ours() -> None:
    attached = profile(
        serve=Serve(kind="attach", url="http://x", port=8000).model_dump(),
        store=Store(rpc_port=50051, master="10.0.0.1:50051").model_dump(),
    )
    assert list(asked_ports(attached)) == ["store.rpc_port"]


def test_a_missing_library_says_why() -> None:
    assert library_error("libc.so.6") == ""
    assert "libnotthere" in library_error("libnotthere.so.1")


class Plan:
    """Nodes whose fabrics go through given states; the clock moves when somebody sleeps."""

    def __init__(self, **states: Sequence[str]):
        self.nodes = [Node(name.replace("_", "-"), "serve") for name in states]
        self.states = {node.name: iter(s) for node, s in zip(self.nodes, states.values(), strict=True)}
        self.asked: list[str] = []
        self.said: list[str] = []
        self.now = 0.0

    def probe_of(self, node: Node, deadline_s: float) -> Probe:
        def probe(request: ProbeRequest) -> NodeFacts:
            self.asked.append(request.node_id)
            gpu = GpuFacts(index=0, fabric=Fabric(state=next(self.states[request.node_id])))
            now = datetime.now(UTC)
            return NodeFacts(node_id=request.node_id, role=request.role, collected_at=now, gpus=(gpu,))

        return probe

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def collect(self, fabric_s: float) -> list[str | None]:
        """The state of each node's fabric in the end."""
        facts = collect_plan(
            self.nodes,
            [ProbeRequest(node_id=node.name, role=node.role) for node in self.nodes],
            fabric_s,
            self.said.append,
            probe_of=self.probe_of,
            clock=lambda: self.now,
            sleep=self.sleep,
        )
        return [(node.gpus or ())[0].fabric.state if node.gpus else None for node in facts]


def test_only_the_node_whose_fabric_is_in_progress_is_asked_again() -> None:
    plan = Plan(serve_0=["Completed"], serve_1=["In Progress", "In Progress", "Completed", "never asked"])
    assert plan.collect(120.0) == ["Completed", "Completed"]
    assert sorted(plan.asked) == ["serve-0", "serve-1", "serve-1", "serve-1"] and plan.now == 10.0
    assert plan.said == [
        "waiting for the NVLink fabric of serve-1, at most 120 s",
        "waiting for the NVLink fabric of serve-1, at most 115 s",
    ]


def test_a_fabric_that_stays_in_progress_is_not_waited_for_ever() -> None:
    plan = Plan(serve_0=["In Progress"] * 9)
    assert plan.collect(12.0) == ["In Progress"]
    assert plan.now == 12.0 and len(plan.asked) == 4


@pytest.mark.parametrize(("state", "fabric_s"), [("Not Started", 120.0), ("In Progress", 0.0)])
def test_other_states_and_no_time_are_not_waited_for(state: str, fabric_s: float) -> None:
    plan = Plan(serve_0=[state])
    assert plan.collect(fabric_s) == [state] and plan.now == 0.0


def test_a_node_that_goes_away_while_it_is_waited_for_is_reported() -> None:
    plan = Plan(serve_0=["In Progress"])
    assert plan.collect(30.0) == [None], "the second probe raised"


def carrier(folder: Path, body: str) -> tuple[str, ...]:
    """A program in front of the probe, as `ssh` would be."""
    path = folder / "carrier"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return (str(path), "host-7")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ('shift; exec "$@"', ""),
        ("echo 'No route to host' >&2; exit 255", "status 255: No route to host"),
    ],
)
def test_a_launchers_node_is_reached_by_its_own_words(
    body: str, why: str, tmp_path: Path, request_for: Callable[[Node], ProbeRequest]
) -> None:
    node = Node("train-0", "train", reach=carrier(tmp_path, body))
    (facts,) = collect_plan([node], [request_for(node)], 0.0, lambda line: None)
    assert (facts.node_id, facts.role) == ("train-0", "train")
    assert why in facts.errors.get("node", "") and bool(facts.os.kernel_release) is not bool(why)


@pytest.fixture
def request_for(tmp_path: Path) -> Callable[[Node], ProbeRequest]:
    return lambda node: request_of(profile(), node, tmp_path)
