"""What is wrong with a plan, or may become so, each with its remedy. Nothing is started to find it."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from profiles.address import is_loopback
from profiles.schema import Profile
from profiles.serving_rules import broken_rules
from profiles.streaming import in_flight_bytes
from tasks.errors import UsageError
from tasks.plan.figures import Figure
from tasks.plan.log_space import planned_space, refuse_planned_log
from tasks.plan.models import Cost, PlannedNode, Risk
from tasks.plan.numbers import plan_numbers
from tasks.plan.segment_space import refuse_samples_beyond_a_segment
from tasks.plan.sizes import SampleSizes
from tasks.plan.target import KnownTarget
from tasks.plan.topology import gpu_bytes, nodes_for_weights
from tasks.plan.wording import size_text
from tasks.plan.work import Work

MUCH_IDLE = 0.5
"""Share of the node-hours without work from which a plan says so."""
FAR = 150
"""A plan this many times as large as what its rates were fitted to says so."""


@dataclass(frozen=True)
class Planned:
    """What the risks are looked for in."""

    profile: Profile
    target: KnownTarget
    work: Work
    sizes: SampleSizes
    weights: Figure
    nodes: tuple[PlannedNode, ...]
    log_bytes: int
    host_bytes: int
    trainer_bytes: int
    cost: Cost
    seconds: Figure
    fitted_samples: int | None = None
    """Samples of the run that the rates come from; None without rates, or where they are not measured."""


def found_risks(plan: Planned) -> tuple[Risk, ...]:
    """Everything found, what refuses the plan first."""
    checks: tuple[Callable[[Planned], Iterator[Risk]], ...] = (
        _refusals,
        _servers,
        _weights,
        _gpu_memory,
        _store,
        _disk_and_host,
        _addresses,
        _time_and_money,
        _knowledge,
    )
    found = [risk for check in checks for risk in check(plan)]
    order = {"refused": 0, "warning": 1, "note": 2}
    return tuple(sorted(found, key=lambda risk: order[risk.severity]))


def refuse(risks: tuple[Risk, ...]) -> None:
    """Raise the first risk that refuses a plan.

    Raises:
        UsageError: There is one.
    """
    for risk in risks:
        if risk.severity == "refused":
            raise UsageError(risk.what, where=risk.where, hint=risk.remedy)


def _refusals(plan: Planned) -> Iterator[Risk]:
    """What the stages themselves refuse."""
    evaluate = plan.work.evaluate_prompts
    for check in (
        lambda: refuse_planned_log(plan.profile, plan.work.samples, evaluate, plan.sizes),
        lambda: refuse_samples_beyond_a_segment(plan.profile, plan.target.config.hidden_size),
    ):
        try:
            check()
        except UsageError as error:
            yield Risk(severity="refused", what=error.what, where=error.where, remedy=error.hint)


def _weights(plan: Planned) -> Iterator[Risk]:
    """Weights against the memory of all GPUs that serve."""
    hardware, weights = plan.profile.hardware, plan.weights.value
    role = hardware.roles.serve
    each = gpu_bytes(role)
    if hardware.mode == "none" or plan.profile.serve.kind != "launch":
        return
    if weights is None or each is None or not role.gpus_per_node:
        yield Risk(
            severity="note",
            what="whether the target's weights fit its GPUs is not known",
            where="hardware.weights_gb, hardware.roles.serve",
            remedy="set hardware.weights_gb, roles.serve.gpus_per_node and roles.serve.memory_total_mib_min",
        )
        return
    gpus = role.nodes * role.gpus_per_node
    usable = gpus * each * hardware.utilisation
    if weights >= usable:
        fewest = nodes_for_weights(weights, role, hardware.utilisation)
        yield Risk(
            severity="refused",
            what=f"{weights / 1e9:,.0f} GB of weights do not fit into {usable / 1e9:,.0f} GB: {role.nodes} x "
            f"{role.gpus_per_node} GPUs of {each / 1e9:,.0f} GB, {hardware.utilisation:.0%} of them usable",
            where="hardware.roles.serve.nodes",
            remedy=f"plan {fewest} serving nodes of this kind, or larger GPUs",
        )


def _servers(plan: Planned) -> Iterator[Risk]:
    """Options of servers that these machines cannot run; a start refuses them."""
    for fault in broken_rules(plan.profile, placement=True):
        yield Risk(
            severity="warning",
            what=fault,
            where="serve.engine, hardware.roles.serve",
            remedy="a start refuses this: plan the machines that the options need, or change the options",
        )


def _gpu_memory(plan: Planned) -> Iterator[Risk]:
    """Each machine's GPUs against what its processes need at once."""
    profile = plan.profile
    for node in plan.nodes:
        usable = node.gpu_usable_bytes
        if usable is not None and "train" in node.roles and plan.trainer_bytes > usable:
            yield Risk(
                severity="refused",
                what=f"the trainer needs about {size_text(plan.trainer_bytes)} of each GPU of {node.name}, "
                f"{size_text(usable)} may be used",
                where="train.anchors, train.batch_tokens",
                remedy="lower train.anchors or train.batch_tokens, shard with train.scale.strategy fsdp, or "
                "plan larger GPUs",
            )
            return
    if profile.hardware.mode != "none" and profile.hardware.roles.colocated and profile.stream.overlaps:
        yield Risk(
            severity="warning",
            what="target and trainer share their GPUs at the same time",
            where="stream.overlap, hardware.roles.colocated",
            remedy="give training nodes of its own, or leave part of each GPU to it "
            "(serve.engine.gpu_memory_utilization)",
        )


def _store(plan: Planned) -> Iterator[Risk]:
    """Samples against the store's buffers and the budget in flight."""
    profile, largest = plan.profile, plan.sizes.largest_bytes
    allowed = in_flight_bytes(profile.stream, profile.store)
    if largest > allowed:
        yield Risk(
            severity="warning",
            what=f"the largest sample ({size_text(largest)}) exceeds stream.in_flight_bytes "
            f"({size_text(allowed)})",
            where="stream.in_flight_bytes",
            remedy="raise it, or lower target.max_model_len",
        )
    numbers = plan_numbers(profile, plan.target.config)
    buffers = numbers.transfers * largest
    if buffers > profile.store.local_buffer_bytes:
        yield Risk(
            severity="warning",
            what=f"{numbers.transfers} samples of up to {size_text(largest)} at once need more than the "
            f"transfer buffer of {size_text(profile.store.local_buffer_bytes)}",
            where="store.local_buffer_bytes",
            remedy=f"raise it to {buffers:,}, or lower store.writer_threads",
        )
    if numbers.flow_bytes is not None and numbers.flow_bytes > allowed:
        yield Risk(
            severity="warning",
            what=f"at the planned rate {size_text(numbers.flow_bytes)} are in the store at once, "
            f"{size_text(allowed)} may be: the capture will wait",
            where="stream.in_flight_bytes",
            remedy="raise it (with store.segment_bytes), or plan fewer tokens per second",
        )


def _disk_and_host(plan: Planned) -> Iterator[Risk]:
    hardware = plan.profile.hardware
    needed = plan.log_bytes / 2**30
    if needed > hardware.min_disk_gib:
        yield Risk(
            severity="warning",
            what=f"the hidden-state log may need {needed:,.1f} GiB, hardware.min_disk_gib asks for "
            f"{hardware.min_disk_gib:g}",
            where="hardware.min_disk_gib",
            remedy="raise it, so that a node with less is refused before it starts, or set stream.retention "
            "to window",
        )
    if planned_space(plan.profile)[0] is None:
        yield Risk(
            severity="note",
            what="the disk of the training node is another machine's, so whether the log fits is not known",
            where="budget.disk_gb",
            remedy="set it to what a run may use there",
        )
    most = max((node.host_bytes for node in plan.nodes), default=plan.host_bytes)
    if most > hardware.min_memory_gib * 2**30:
        yield Risk(
            severity="warning",
            what=f"a node's processes may need {size_text(most)}, hardware.min_memory_gib asks for "
            f"{size_text(hardware.min_memory_gib * 2**30)}",
            where="hardware.min_memory_gib",
            remedy="raise it, so that a node with less is refused before it starts",
        )


def _addresses(plan: Planned) -> Iterator[Risk]:
    """Addresses that no other node reaches, or that are nobody's."""
    serve, roles = plan.profile.serve, plan.profile.hardware.roles
    if serve.kind == "launch" and roles.span_hosts and is_loopback(serve.host):
        ranks = " and its ranks cannot meet" if roles.serve.nodes > 1 else ""
        yield Risk(
            severity="warning",
            what=f"the target listens on {serve.host}, which the training node does not reach{ranks}",
            where="serve.host",
            remedy="name an address of the first serving node that the others reach",
        )
    try:
        host = ipaddress.ip_address(plan.profile.store.host)
    except ValueError:
        return
    documentation = ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32")
    if any(host in ipaddress.ip_network(network) for network in documentation):
        yield Risk(
            severity="warning",
            what=f"store.host is {host}, an address for documentation that no node has",
            where="store.host",
            remedy="name the data address of the first serving node",
        )


def _time_and_money(plan: Planned) -> Iterator[Risk]:
    cost, budget = plan.cost, plan.profile.budget
    if cost.over_budget:
        asked = [
            f"{value:,.3g} of {limit:g} {unit}"
            for value, limit, unit in (
                (cost.gpu_hours, budget.gpu_hours, "GPU-hours"),
                (cost.node_hours, budget.node_hours, "node-hours"),
            )
            if value is not None and limit is not None and value > limit
        ]
        yield Risk(
            severity="warning",
            what=f"the run needs more than its budget ({', '.join(asked)}): it will stop there, resumable",
            where="budget",
            remedy="raise the budget, or plan fewer prompts, epochs or nodes",
        )
    if (budget.gpu_hours or budget.node_hours) and plan.seconds.value is None:
        yield _note("whether the budget is enough is not known", "budget", "give --rates FILE|RUN of a pilot")
    idle, hours = cost.idle_node_hours, cost.node_hours
    if idle is not None and hours and len(plan.nodes) > 1 and idle / hours >= MUCH_IDLE:
        yield Risk(
            severity="warning",
            what=f"{idle:,.2f} of {hours:,.2f} node-hours have no work",
            where="stream.overlap, hardware.roles",
            remedy="train beside the capture (stream.overlap), or compare other sets of nodes (--compare)",
        )
    if plan.profile.hardware.mode != "none" and cost.price_serving_gpu_hour is None:
        yield _note(
            "what the run costs is not known: the profile has no price",
            "evaluate.prices.serving_gpu_hour",
            "set the price of one GPU for one hour",
        )


def _knowledge(plan: Planned) -> Iterator[Risk]:
    """Numbers that stand on little."""
    if plan.target.origin == "profile":
        yield _note(
            f"there is no target folder '{plan.profile.target.model}': its sizes are those of the profile",
            "hardware.target",
            "point target.model at a folder with the target's config.json: a plan needs no weights",
        )
    if plan.seconds.value is None:
        yield _note(
            "how long the run takes is not known", "--rates", "run a pilot: retrain-dspark run --pilot; then "
            "plan --rates RUN"
        )  # fmt: skip
    fitted = plan.fitted_samples
    if fitted and plan.work.samples > FAR * fitted:
        yield Risk(
            severity="warning",
            what=f"the rates were measured on {fitted:,} samples, this run has {plan.work.samples:,}",
            where="--rates",
            remedy="measure a larger part: what slows down later (full disks, memory, heat) is in no rate",
        )


def _note(what: str, where: str, remedy: str) -> Risk:
    severity: Literal["note"] = "note"
    return Risk(severity=severity, what=what, where=where, remedy=remedy)
