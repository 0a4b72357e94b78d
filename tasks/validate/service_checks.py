"""Checks of GPUs, network and the hidden-state store."""

from __future__ import annotations

from tasks.validate.facts import NodeFacts
from tasks.validate.registry import Verdict, check
from tasks.validate.requirements import Requirements
from tasks.validate.store_roundtrip_verdict import observed_text, problems, required_text


@check(
    "gpu.count",
    rule="GPU mode `nvidia` finds at least one NVIDIA GPU within 10 s",
    remedy="install the NVIDIA driver so that `nvidia-smi` answers, or use one with `hardware.mode: none`",
)
def gpu_count(facts: NodeFacts, need: Requirements) -> Verdict:
    if need.mode == "none":
        return Verdict("skip", "not asked", "none", "the profile runs without GPUs")
    if not facts.gpus:
        why = facts.errors.get("gpus", "no GPU enumerated")
        return Verdict("fail", "not observed" if facts.gpus is None else "0", "at least 1", why)
    names = sorted({gpu.name or "unnamed" for gpu in facts.gpus})
    return Verdict("pass", str(len(facts.gpus)), "at least 1", ", ".join(names))


@check(
    "net.loopback",
    rule="`localhost` resolves to a loopback address: servers are reached through it",
    remedy="add `127.0.0.1 localhost` to /etc/hosts",
)
def loopback(facts: NodeFacts, need: Requirements) -> Verdict:
    found = facts.net.loopback_addresses
    good = bool(found) and all(a.startswith("127.") or a == "::1" for a in found or ())
    return Verdict(
        "pass" if good else "fail",
        ", ".join(found or ()) or "does not resolve",
        "127.0.0.1 or ::1",
        "" if good else "localhost does not lead to this machine",
    )


@check(
    "net.ports",
    rule="every port that the profile names is free (0 takes a free one)",
    remedy="end the program that holds the port, or set the field to 0",
    user_input=True,
)
def ports(facts: NodeFacts, need: Requirements) -> Verdict:
    taken = {field: holder for field, holder in facts.net.ports.items() if holder}
    observed = "; ".join(f"{field} is held by {holder}" for field, holder in taken.items())
    asked = ", ".join(facts.net.ports) or "any free port"
    return Verdict(
        "fail" if taken else "pass",
        observed or "free",
        asked,
        "a port is taken by another program" if taken else "",
    )


@check(
    "store.roundtrip",
    rule="tensors of the run's sizes go from one process to another through a real Mooncake store, with the "
    "run's buffers and writers and both placements, come back equal and fast enough, and cross the network "
    "where the plan spans hosts; local buffer and segments hold what the run has in flight",
    remedy="read `logs/store-*.log` of the run; the message names the cause and what to do",
)
def store_roundtrip(facts: NodeFacts, need: Requirements) -> Verdict:
    store = facts.store
    if not need.store_roundtrip:
        return Verdict("skip", "not run", required_text(store), "hardware.store_roundtrip is off")
    found = problems(store)
    message = "; ".join(f"{one.what}. To do: {one.remedy}" for one in found)
    return Verdict("fail" if found else "pass", observed_text(store), required_text(store), message)
