"""Checks of names, addresses, ports, and RDMA."""

from __future__ import annotations

import ipaddress
from collections import Counter

from profiles.hardware import RdmaRequirements
from tasks.validate.facts import NodeFacts, RdmaPort
from tasks.validate.registry import node_check
from tasks.validate.requirements import Requirements
from tasks.validate.verdicts import NOT_OBSERVED, Fault, Verdict, from_faults, skip, unobserved

LINK_LAYERS = ("InfiniBand", "Ethernet")
UNLIMITED = -1


@node_check(
    "net.loopback",
    rule="`localhost` resolves to a loopback address: servers are reached through it",
    remedy="add `127.0.0.1 localhost` to /etc/hosts",
)
def loopback(facts: NodeFacts, need: Requirements) -> Verdict:
    found = facts.net.loopback_addresses
    good = bool(found) and all(_is_loopback(address) for address in found or ())
    return Verdict(
        "pass" if good else "fail",
        ", ".join(found or ()) or "does not resolve",
        "127.0.0.1 or ::1",
        "" if good else "localhost does not lead to this machine",
        "net.loopback_addresses",
    )


@node_check(
    "net.ports",
    rule="on the serving node, every port that the profile names is free (0 takes a free one)",
    remedy="end the program that holds the port, or set the field to 0",
    user_input=True,
)
def ports(facts: NodeFacts, need: Requirements) -> Verdict:
    if "serve" not in facts.roles:
        return skip("the run's servers listen on the serving node", observed="not asked")
    unseen = {field: NOT_OBSERVED for field in need.ports if field not in facts.net.ports}
    taken = {field: f"is held by {holder}" for field, holder in facts.net.ports.items() if holder}
    observed = "; ".join(f"{field} {what}" for field, what in {**unseen, **taken}.items())
    asked = ", ".join(facts.net.ports or need.ports) or "any free port"
    message = "a port is taken by another program" if taken else "a port was not looked at" if unseen else ""
    return Verdict("fail" if taken or unseen else "pass", observed or "free", asked, message, "net.ports")


@node_check(
    "net.address",
    rule="where hidden states go from one host to another, the address that a node gives to its peers, and "
    "the one that its own name resolves to, are not loopback; the master is reachable where it was tried; "
    "and MC_FORCE_TCP agrees with the transport",
    remedy="set MOONCAKE_LOCAL_HOSTNAME to the data address (installers often map the host name to "
    "127.0.1.1, and peers then dial themselves); export MC_FORCE_TCP=true for tcp where RDMA devices are "
    "present",
    severity="fail, warn",
)
def address(facts: NodeFacts, need: Requirements) -> Verdict:
    if not need.hardware.roles.span_hosts:
        return skip("the run stays on one host", observed=facts.net.data_ip or "not asked")
    net, faults = facts.net, []
    for what, found in (("the data address", net.data_ip), ("the host's name", net.resolved_ip)):
        if found is None:
            faults.append(Fault("fail", f"{what} {NOT_OBSERVED}"))
        elif _is_loopback(found):
            faults.append(Fault("fail", f"{what} is {found}: peers that dial it reach themselves"))
    if net.master_reachable is False:
        faults.append(Fault("fail", "the store's master cannot be reached"))
    faults += _transport_faults(facts, need.protocol)
    observed = f"data address {net.data_ip or NOT_OBSERVED}, name {net.resolved_ip or NOT_OBSERVED}"
    return from_faults(faults, observed, "addresses that peers reach", "net")


def _transport_faults(facts: NodeFacts, protocol: str) -> list[Fault]:
    forced = facts.net.mc_force_tcp
    if protocol == "rdma" and forced is not False:
        state = "set" if forced else NOT_OBSERVED
        return [Fault("fail", f"the transport is rdma and MC_FORCE_TCP is {state}")]
    if protocol == "tcp" and forced is not True and any(port.state == "ACTIVE" for port in facts.rdma or ()):
        return [Fault("warn", "the transport is tcp, RDMA ports are active and MC_FORCE_TCP is not set")]
    return []


def _is_loopback(text: str) -> bool:
    try:
        return ipaddress.ip_address(text.split("%")[0]).is_loopback
    except ValueError:
        return text == "localhost"


@node_check(
    "rdma.ports",
    rule="with the transport `rdma`, the role's number of ports is usable (active, right link layer and "
    "rate, uverbs, a good GID) in one subnet, and memory can be locked without limit; with `tcp` it is "
    "skipped",
    remedy="check cable, subnet manager and P_Key of the ports that the message names; `ulimit -l "
    "unlimited`; MC_GID_INDEX where the first GID is empty; name usable devices in `store.device`",
)
def rdma_ports(facts: NodeFacts, need: Requirements) -> Verdict:
    if need.protocol != "rdma":
        return skip("the transport is tcp")
    wanted = need.of_role.rdma
    rate = f" of {wanted.rate_gbps_min:g} Gbit/s" if wanted.rate_gbps_min else ""
    required = f"{wanted.ports_min} usable ports{rate} in one subnet, unlimited locked memory"
    if facts.rdma is None:
        return unobserved("RDMA ports", required, facts, "rdma")
    excluded = {f"{p.device}/{p.port}": why for p in facts.rdma if (why := _unusable(p, wanted))}
    subnets = Counter(port.subnet for port in facts.rdma if f"{port.device}/{port.port}" not in excluded)
    usable = max(subnets.values(), default=0)
    left_out = [f"{name}: {why}" for name, why in excluded.items()]
    if len(subnets) > 1:
        left_out.append(f"usable ports are in {len(subnets)} subnets that do not reach each other")
    faults = []
    if usable < wanted.ports_min:
        detail = "; ".join(left_out) or "no RDMA device"
        faults.append(Fault("fail", f"{usable} usable ports in one subnet ({detail})"))
    memlock = facts.net.memlock_bytes
    if memlock != UNLIMITED:
        limit = NOT_OBSERVED if memlock is None else f"limited to {memlock:,} bytes"
        faults.append(Fault("fail", f"locked memory is {limit}: memory cannot be registered"))
    verdict = from_faults(faults, f"{usable} usable ports", required, "rdma")
    if verdict.status == "pass" and left_out:
        return Verdict("pass", verdict.observed, required, "not used: " + "; ".join(left_out), "rdma")
    return verdict


def _unusable(port: RdmaPort, wanted: RdmaRequirements) -> str:
    """Why a port cannot be used; empty if it can."""
    layers = (wanted.link_layer,) if wanted.link_layer else LINK_LAYERS
    if port.state != "ACTIVE" or port.phys_state != "LinkUp":
        return f"{port.state or NOT_OBSERVED}, {port.phys_state or NOT_OBSERVED}"
    if port.link_layer not in layers:
        return f"link layer {port.link_layer or NOT_OBSERVED}"
    if wanted.rate_gbps_min and (port.rate_gbps or 0) < wanted.rate_gbps_min:
        return f"{port.rate_gbps or NOT_OBSERVED} Gbit/s"
    if port.uverbs is not True:
        return "no uverbs device"
    return "" if port.gid_ok is True else "no good GID"
