"""Checks of NVLink, its fabric, and IMEX. Links train without a fabric, so links alone prove little."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from profiles.hardware import RoleRequirements
from tasks.validate.fabric_health import problems, reports_nothing
from tasks.validate.facts import NodeFacts, Role
from tasks.validate.gpu_facts import GpuFacts, GpuPeer
from tasks.validate.registry import ALL, Nodes, group_check, node_check
from tasks.validate.requirements import Requirements
from tasks.validate.verdicts import (
    NOT_OBSERVED,
    Fault,
    Verdict,
    from_faults,
    missing,
    per_gpu,
    skip,
    worst_of,
)

SPEED_SHARE = 0.99
"""A link may report 1 % less than its nominal speed."""
IMEX_UP = ("UP", "READY")
NO_NODE = "there is no node of this role; see fleet.nodes"


@node_check(
    "nvlink.links",
    rule="every GPU has the role's number of active NVLinks, each at its speed and with the right remote "
    "end; where the paths between GPUs were observed, they are complete and symmetric and allow peer access",
    remedy="reset the GPU; if a link stays down, reseat or replace the part: with fewer links collectives "
    "run slower or not at all",
)
def links(facts: NodeFacts, need: Requirements) -> Verdict:
    wanted = need.of_role.nvlink
    if wanted.links is None and need.hardware.mode != "none":
        return skip("the profile names no NVLinks")

    def faults(gpu: GpuFacts) -> Iterable[Fault]:
        if gpu.nvlinks is None:
            yield Fault("fail", f"NVLinks {NOT_OBSERVED}")
            return
        for link in gpu.nvlinks:
            if link.state != "active":
                yield Fault("fail", f"link {link.link} is {link.state or NOT_OBSERVED}")
            elif wanted.speed_mb_s_min and (link.speed_mb_s or 0) < wanted.speed_mb_s_min * SPEED_SHARE:
                yield Fault("fail", f"link {link.link} runs at {link.speed_mb_s or NOT_OBSERVED} MB/s")
            elif wanted.remote and link.remote != wanted.remote:
                yield Fault("fail", f"link {link.link} ends at {link.remote or NOT_OBSERVED}")
        if len(gpu.nvlinks) != wanted.links:
            yield Fault("fail", f"has {len(gpu.nvlinks)} links")

    speed = f" of {wanted.speed_mb_s_min:,} MB/s" if wanted.speed_mb_s_min else ""
    required = f"{wanted.links} active links{speed} each"
    verdict = per_gpu(facts, need, required, "nvlinks", faults)
    if verdict.status == "skip" or not facts.gpu_peers:
        return verdict
    paths = from_faults(
        _peer_faults(facts.gpu_peers, wanted.links or 0), "see message", required, "gpu_peers"
    )
    return worst_of([verdict, paths])


def _peer_faults(peers: Sequence[GpuPeer], links: int) -> Iterable[Fault]:
    paths = {(peer.from_gpu, peer.to_gpu): peer.path for peer in peers}
    for peer in peers:
        pair = f"GPU{peer.from_gpu} to GPU{peer.to_gpu}"
        back = paths.get((peer.to_gpu, peer.from_gpu))
        if peer.path is not None and peer.path != f"NV{links}":
            yield Fault("fail", f"{pair}: path {peer.path}, wanted NV{links}")
        elif peer.path is not None and back is not None and back != peer.path:
            yield Fault("fail", f"{pair}: path {peer.path}, but {back} the other way")
        if peer.nvlink_p2p not in (None, "ok"):
            yield Fault("fail", f"{pair}: peer access over NVLink {peer.nvlink_p2p}")


@node_check(
    "fabric.state",
    rule="every GPU has completed its registration with the NVLink fabric, with success; a registration in "
    "progress is waited for (`hardware.retry.fabric_s`)",
    remedy="check the fabric manager on the switch trays (NMX), then reset the GPU",
)
def fabric_state(facts: NodeFacts, need: Requirements) -> Verdict:
    if not need.of_role.fabric.require_completed and need.hardware.mode != "none":
        return skip("the profile needs no NVLink fabric")

    def faults(gpu: GpuFacts) -> Iterable[Fault]:
        fabric = gpu.fabric
        if fabric.state != "Completed":
            yield Fault("fail", f"state {fabric.state or NOT_OBSERVED}")
        elif fabric.status != "Success":
            wrong = [f"status {fabric.status or NOT_OBSERVED}"]
            wrong += ["clique 0"] if fabric.clique_id == 0 else []
            wrong += ["cluster UUID of zeros"] if _is_zero(fabric.cluster_uuid) else []
            yield Fault("fail", ", ".join(wrong))

    return per_gpu(facts, need, "Completed, Success", "fabric.state", faults)


@node_check(
    "fabric.health",
    rule="the summary is Healthy, or is not offered while the health mask is clean; `Limited Capacity` is a "
    "warning",
    remedy="check the fault that the message names with the fabric manager; drain the node until it is gone",
    severity="fail, warn",
)
def fabric_health(facts: NodeFacts, need: Requirements) -> Verdict:
    if not need.of_role.fabric.require_completed and need.hardware.mode != "none":
        return skip("the profile needs no NVLink fabric")
    gpus = facts.gpus or ()
    if gpus and all(gpu.fabric.state != "Completed" for gpu in gpus):
        return skip("no registration is complete; see fabric.state", observed=NOT_OBSERVED)
    return per_gpu(
        facts, need, "Healthy, clean mask", "fabric.health_mask", lambda gpu: _health_faults(facts, gpu)
    )


def _health_faults(facts: NodeFacts, gpu: GpuFacts) -> Iterable[Fault]:
    summary, mask = gpu.fabric.health_summary, gpu.fabric.health_mask
    if gpu.fabric.state != "Completed":
        if gpu.fabric.state is None:
            yield Fault("fail", f"registration {NOT_OBSERVED}")
        return
    yield from missing(facts, gpu, "fabric.health_summary", "health summary")
    yield from missing(facts, gpu, "fabric.health_mask", "health mask")
    found = problems(mask) if mask is not None else []
    where = f" (mask {mask:#x})" if mask is not None else ""
    if found:
        yield Fault("fail", f"{', '.join(found)}{where}")
    elif summary == "Limited Capacity":
        yield Fault("warn", f"limited capacity{where}")
    elif summary not in ("Healthy", "Not Supported", None):
        yield Fault("fail", f"summary {summary}{where}")
    elif summary != "Healthy" and (mask is None or reports_nothing(mask)):
        yield Fault("warn", "the driver reports no health of the fabric")


def _is_zero(uuid: str | None) -> bool:
    return uuid is not None and not re.search(r"[1-9a-fA-F]", uuid)


def _asked_roles(need: Requirements) -> dict[Role, RoleRequirements]:
    return {role: need.role_requirements(role) for role in ("serve", "train")}


@group_check(
    "fabric.domain",
    rule="all GPUs of a role with `fabric.same_domain` are in one NVLink domain: one cluster UUID, not of "
    "zeros, and one clique. Roles may be in different domains",
    remedy="choose nodes of one NVLink domain and partition: tensor parallelism over two domains falls back "
    "to the network, or crashes",
)
def fabric_domain(nodes: Nodes, need: Requirements) -> Mapping[str, Verdict]:
    if need.hardware.mode == "none":
        return {ALL: skip("the profile runs without GPUs", observed="not asked")}
    asked = {role: wanted for role, wanted in _asked_roles(need).items() if wanted.fabric.same_domain}
    if not asked:
        return {ALL: skip("no role needs one NVLink domain")}
    return {role: _domain([node for node in nodes if role in node.roles]) for role in asked}


def _domain(nodes: Nodes) -> Verdict:
    if not nodes:
        return skip(NO_NODE)
    domains: dict[tuple[str, int], list[str]] = {}
    faults = []
    for node in nodes:
        if not node.gpus:
            faults.append(Fault("fail", f"{node.node_id}: domain {NOT_OBSERVED}, no GPU"))
        for gpu in node.gpus or ():
            uuid, clique = gpu.fabric.cluster_uuid, gpu.fabric.clique_id
            name = f"{node.node_id} GPU{gpu.index}"
            if uuid is None or clique is None:
                faults.append(Fault("fail", f"{name}: cluster UUID or clique {NOT_OBSERVED}"))
            elif _is_zero(uuid):
                faults.append(Fault("fail", f"{name}: cluster UUID of zeros, clique {clique}"))
            else:
                domains.setdefault((uuid.lower(), clique), []).append(name)
    if len(domains) > 1:
        places = "; ".join(f"{uuid} clique {clique}: {', '.join(m)}" for (uuid, clique), m in domains.items())
        faults.append(Fault("fail", f"GPUs are in {len(domains)} domains: {places}"))
    found = f"{len(domains)} domain{'' if len(domains) == 1 else 's'}"
    return from_faults(faults, found, "1 domain", "gpus[*].fabric")


@group_check(
    "imex.ready",
    rule="where a role with `imex` has more than one node, each of its nodes has IMEX channel 0, an IMEX "
    "domain that is up with all nodes ready, the driver's version, and as many channels as the others",
    remedy="create channel 0 (`NVreg_CreateImexChannel0=1`, or nvidia-modprobe), start nvidia-imex with the "
    "addresses of all nodes, and install the version of the driver",
)
def imex_ready(nodes: Nodes, need: Requirements) -> Mapping[str, Verdict]:
    if need.hardware.mode == "none":
        return {ALL: skip("the profile runs without GPUs", observed="not asked")}
    asked = {role: wanted for role, wanted in _asked_roles(need).items() if wanted.imex}
    if not asked:
        return {ALL: skip("no role needs IMEX")}
    found: dict[str, Verdict] = {}
    for role, wanted in asked.items():
        if wanted.nodes == 1:
            found[role] = skip("not needed: the role has one node, and IMEX shares memory between nodes")
            continue
        mine = [node for node in nodes if role in node.roles]
        found[role] = _imex(mine, wanted.nodes)
    return found


def _imex(nodes: Nodes, count: int) -> Verdict:
    if not nodes:
        return skip(NO_NODE)
    faults = [Fault("fail", f"{node.node_id}: {text}") for node in nodes for text in _imex_texts(node, count)]
    channels = {len(node.imex.channels) for node in nodes if node.imex.channels}
    if len(channels) > 1:
        faults.append(Fault("fail", f"nodes have different numbers of channels: {sorted(channels)}"))
    bad = sum(bool(_imex_texts(node, count)) for node in nodes)
    return from_faults(faults, f"{len(nodes) - bad} of {count} nodes ready", f"{count} nodes ready", "imex")


def _imex_texts(node: NodeFacts, count: int) -> list[str]:
    """What keeps a node's IMEX from being ready."""
    imex = node.imex
    if (imex.channels, imex.daemon_version, imex.domain_state) == (None, None, None):
        return [f"IMEX {NOT_OBSERVED}"]
    texts = []
    if "channel0" not in (imex.channels or ()):
        texts.append("channel0 is missing" if imex.channels is not None else f"channels {NOT_OBSERVED}")
    if (imex.domain_state or "").upper() not in IMEX_UP:
        texts.append(f"domain {imex.domain_state or NOT_OBSERVED}")
    elif (imex.ready_nodes or 0) < count:
        seen = NOT_OBSERVED if imex.ready_nodes is None else f"{imex.ready_nodes} of {count}"
        texts.append(f"ready nodes: {seen}")
    if imex.daemon_version is None or imex.daemon_version != node.driver.kmd_version:
        versions = f"{imex.daemon_version or NOT_OBSERVED}, driver {node.driver.kmd_version or NOT_OBSERVED}"
        texts.append(f"IMEX {versions}")
    return texts
