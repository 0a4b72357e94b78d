"""Facts of every node of a plan: what each is asked for, all of them at once, and waiting for a fabric.

A node is read by the program `collect/probe.py`, here as well as elsewhere, so that nothing on it can hold up
the rest. What it could not observe stays unobserved, with the reason in `NodeFacts.errors`.
"""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from profiles.schema import Profile
from tasks.processes.identity import host_name
from tasks.processes.nodes import Node
from tasks.validate.collect.assemble import node_facts
from tasks.validate.collect.child import collect_one
from tasks.validate.collect.findings import merge
from tasks.validate.collect.nodes import NODE_DEADLINE_S, Probe, collect_nodes, program_probe
from tasks.validate.collect.request import ProbeRequest
from tasks.validate.facts import NodeFacts
from tasks.validate.requirements import asked_ports

POLL_S = 5.0
"""Time between two looks at a fabric registration in progress."""
_DISTRIBUTION = "retrain-dspark"


def request_of(profile: Profile, node: Node, run_root: Path, run_folder: Path | None = None) -> ProbeRequest:
    """What a node is asked for. The master is not tried: validate runs before it starts.

    Args:
        run_root: Folder of all runs; its disk is measured.
        run_folder: Folder of this run, if there is one yet.
    """
    target = profile.target
    local = target.source.kind == "path"
    return ProbeRequest(
        node_id=node.name,
        role=node.role,
        gpus=profile.hardware.mode != "none",
        data_ip=node.address,
        weights_path=str(Path(target.model).expanduser().absolute()) if local else "",
        run_root=str(run_root.absolute()),
        run_folder=str(run_folder.absolute()) if run_folder else "",
        ports=asked_ports(profile) if "serve" in node.role else {},
    )


def node_probe(node: Node, deadline_s: float) -> Probe:
    """The probe of one node: the program, carried there."""
    return program_probe(node.reach, node.python, deadline_s)


def collect_plan(
    nodes: Sequence[Node],
    requests: Sequence[ProbeRequest],
    fabric_s: float,
    say: Callable[[str], None],
    *,
    probe_of: Callable[[Node, float], Probe] = node_probe,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[NodeFacts, ...]:
    """Probe all nodes at once, then those again whose NVLink fabric is still being registered.

    Args:
        requests: One for each node, in their order.
        fabric_s: Longest time to wait for fabrics, beyond the first answers, seconds.
        say: Called with a line that tells what is waited for.

    Returns:
        Facts in the order of the nodes; a node that does not answer has an error `node`.
    """
    probes = {node.name: probe_of(node, NODE_DEADLINE_S) for node in nodes}

    def ask(some: Sequence[ProbeRequest]) -> dict[str, NodeFacts]:
        found = collect_nodes(some, lambda request: probes[request.node_id](request))
        return {request.node_id: facts for request, facts in zip(some, found, strict=True)}

    facts = ask(requests)
    ends = clock() + fabric_s
    while waiting := [request for request in requests if fabric_in_progress(facts[request.node_id])]:
        left = ends - clock()
        if left <= 0:
            break
        names = ", ".join(request.node_id for request in waiting)
        say(f"waiting for the NVLink fabric of {names}, at most {left:.0f} s")
        sleep(min(POLL_S, left))
        facts |= ask(waiting)
    return tuple(facts[request.node_id] for request in requests)


def fabric_in_progress(facts: NodeFacts) -> bool:
    """A GPU's fabric registration has begun and not ended: it settles by itself."""
    return any(gpu.fabric.state == "In Progress" for gpu in facts.gpus or ())


def user_facts(profile: Profile, run_root: Path) -> NodeFacts:
    """What a user can put right at once, read in this process: disk and ports."""
    request = request_of(profile, Node(host_name()), run_root)
    return node_facts(request, merge(collect_one("disk", request), collect_one("network", request)))


def own_requirements() -> list[str]:
    """`Requires-Dist` lines of this project, where it is installed."""
    try:
        return importlib.metadata.requires(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return []
