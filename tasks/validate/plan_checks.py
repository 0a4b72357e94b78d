"""Checks of the plan itself, before any GPU works: do weights, hidden states and training fit at all."""

from __future__ import annotations

from collections.abc import Mapping

from profiles.hardware import RoleRequirements
from tasks.plan.numbers import PlanNumbers
from tasks.validate.facts import NodeFacts, Role
from tasks.validate.models import Status
from tasks.validate.registry import ALL, Nodes, group_check, node_check
from tasks.validate.requirements import GIB, Requirements
from tasks.validate.verdicts import Fault, Verdict, from_faults, skip, unobserved

MIB = 2**20
LINE_SHARE = 0.7
"""Share of the line rate that a transfer can count on."""
UNKNOWN_SIZES = "the target's sizes are not known yet"


def _unseen(nodes: Nodes, role: Role, required: str) -> Verdict:
    """GPUs that do not tell their memory; GPUs that are not there are the fault of `gpu.count`."""
    if any(role in node.roles and node.gpus for node in nodes):
        return Verdict("fail", "not observed", required, "the memory of the GPUs was not observed")
    return skip("no GPU was observed; see gpu.count", "not observed", required)


def _gpu_memory_bytes(nodes: Nodes, role: Role, wanted: RoleRequirements) -> list[int] | None:
    """Memory of each GPU of a role: as planned, or as observed where the profile names none."""
    if wanted.memory_total_mib_min and wanted.gpus_per_node:
        return [wanted.memory_total_mib_min * MIB] * (wanted.nodes * wanted.gpus_per_node)
    mine = [gpu for node in nodes if role in node.roles for gpu in node.gpus or ()]
    sizes = [gpu.memory_total_mib * MIB for gpu in mine if gpu.memory_total_mib is not None]
    return sizes if sizes and len(sizes) == len(mine) else None


@group_check(
    "plan.weights_memory",
    rule="the target's weights (`hardware.weights_gb`) fit into the share `hardware.utilisation` of the "
    "memory of all serving GPUs; what is left holds the KV cache and hidden states",
    remedy="plan more serving nodes or larger GPUs: weights that do not fit end vLLM after an hour of "
    "loading",
)
def weights_memory(nodes: Nodes, need: Requirements) -> Mapping[str, Verdict]:
    weights = need.hardware.weights_gb
    if need.hardware.mode == "none" or weights is None:
        return {"serve": skip("the profile names no size of the weights, or runs without GPUs")}
    wanted = need.hardware.roles.serve
    sizes = _gpu_memory_bytes(nodes, "serve", wanted)
    required = f"more than {weights:,.0f} GB of weights"
    if sizes is None:
        return {"serve": _unseen(nodes, "serve", required)}
    usable = sum(sizes) * need.hardware.utilisation / 1e9
    observed = f"{usable:,.0f} GB usable on {len(sizes)} GPUs"
    if usable <= weights:
        text = f"{weights:,.0f} GB of weights do not fit into {usable:,.0f} GB"
        return {"serve": Verdict("fail", observed, required, text, "gpus[*].memory_total_mib")}
    left = (usable - weights) / len(sizes)
    note = f"{left:,.0f} GB of each GPU are left for KV cache and hidden states"
    return {"serve": Verdict("pass", observed, required, note, "gpus[*].memory_total_mib")}


@group_check(
    "plan.trainer_memory",
    rule="weights, gradients, moments, logits and activations of the draft fit into the share "
    "`hardware.utilisation` of one training GPU",
    remedy="lower `train.anchors` or `train.batch_tokens`, or plan larger GPUs",
)
def trainer_memory(nodes: Nodes, need: Requirements) -> Mapping[str, Verdict]:
    plan = need.plan
    if need.hardware.mode == "none":
        return {"train": skip("the draft is trained without GPUs; see host.memory")}
    if plan is None:
        return {"train": skip(UNKNOWN_SIZES)}
    required = f"{plan.trainer_bytes / 1e9:,.1f} GB on each GPU"
    sizes = _gpu_memory_bytes(nodes, "train", need.hardware.roles.train)
    if sizes is None:
        return {"train": _unseen(nodes, "train", required)}
    usable = min(sizes) * need.hardware.utilisation
    observed = f"{usable / 1e9:,.1f} GB usable on the smallest"
    text = (
        f"the draft has {plan.draft_parameters:,} parameters, {plan.trained_parameters:,} of them are trained"
    )
    status: Status = "pass" if plan.trainer_bytes <= usable else "fail"
    return {"train": Verdict(status, observed, required, text, "gpus[*].memory_total_mib")}


@group_check(
    "plan.transfer_rate",
    rule="the hidden states of the planned tokens per second, with the margin, need at most 70 % of the line "
    "rate of the role's RDMA ports; without them only the store's round trip can tell",
    remedy="plan fewer tokens per second (`hardware.transfer.tokens_per_s`), fewer captured layers, or more "
    "ports",
)
def transfer_rate(nodes: Nodes, need: Requirements) -> Mapping[str, Verdict]:
    plan = need.plan
    if plan is None or plan.required_gb_per_s is None:
        return {ALL: skip(UNKNOWN_SIZES if plan is None else "the profile plans no tokens per second")}
    required = f"{plan.required_gb_per_s:.2f} GB/s"
    note = _volume(plan)
    rdma = need.hardware.roles.train.rdma
    if need.protocol != "rdma" or rdma.rate_gbps_min is None:
        return {
            ALL: skip(f"no line rate is planned; store.roundtrip measures. {note}", "not planned", required)
        }
    line = LINE_SHARE * rdma.rate_gbps_min * rdma.ports_min / 8
    faults = [Fault("fail", f"needs {required}; {note}")] if line < plan.required_gb_per_s else []
    verdict = from_faults(faults, f"{line:.1f} GB/s at 70 % of the line rate", required, "rdma")
    return {ALL: verdict if faults else Verdict("pass", verdict.observed, required, note, "rdma")}


def _volume(plan: PlanNumbers) -> str:
    """Bytes per token, sample and epoch, in words."""
    sizes = plan.sizes
    text = f"{sizes.token_bytes:,} bytes a token, {sizes.largest_bytes / 1e6:,.1f} MB the largest sample"
    return text if plan.log_bytes is None else f"{text}, {plan.log_bytes / 1e9:,.2f} GB an epoch"


@node_check(
    "plan.disk",
    rule="the hidden-state log, checkpoints, exported and published draft of the plan fit under the run "
    "root of the training node",
    remedy="free space (`retrain-dspark clean`), point RETRAIN_DSPARK_RUNS to a larger disk, or plan fewer "
    "prompts or shorter answers",
    user_input=True,
)
def disk(facts: NodeFacts, need: Requirements) -> Verdict:
    plan = need.plan
    if "train" not in facts.roles:
        return skip("nothing of the run is written on this node")
    if plan is None:
        return skip(UNKNOWN_SIZES)
    needed = (plan.log_disk_bytes or 0) + plan.kept_bytes
    required = f"{needed / GIB:,.1f} GiB"
    free = facts.disk.run_root_free_bytes
    if free is None:
        return unobserved("free space under the run root", required, facts, "disk.run_root_free_bytes")
    if free < need.hardware.min_disk_gib * GIB:
        return skip(
            "less is free than hardware.min_disk_gib; see disk.run_root", f"{free / GIB:,.1f} GiB", required
        )
    log = (
        "of unknown size"
        if plan.log_disk_bytes is None
        else f"{plan.log_disk_bytes / GIB:,.1f} GiB (samples of {plan.sizes.typical_tokens} tokens, prompts "
        "estimated from their characters)"
    )
    text = f"log {log}, checkpoints and drafts {plan.kept_bytes / GIB:,.1f} GiB"
    status: Status = "pass" if free >= needed else "fail"
    return Verdict(status, f"{free / GIB:,.1f} GiB", required, text, "disk.run_root_free_bytes")


@node_check(
    "host.weights_space",
    rule="where the target's weights lie, they are already there, or 2 % more than `hardware.weights_gb` is "
    "free",
    remedy="free space for the checkpoint, or put it on storage that the nodes share",
    severity="warn",
)
def weights_space(facts: NodeFacts, need: Requirements) -> Verdict:
    weights = need.hardware.weights_gb
    if weights is None or "serve" not in facts.roles or need.role != "serve":
        return skip("the profile names no size of the weights, or the node does not serve")
    host, required = facts.host, f"{weights * 1.02:,.0f} GB free, or the weights themselves"
    if host.weights_present:
        return Verdict("pass", "the weights are there", required, "", "host.weights_present")
    if host.weights_path_free_gb is None:
        return unobserved("free space for the weights", required, facts, "host.weights_path_free_gb", "warn")
    faults = (
        [Fault("warn", "too small for the weights")] if host.weights_path_free_gb < weights * 1.02 else []
    )
    return from_faults(faults, f"{host.weights_path_free_gb:,.0f} GB", required, "host.weights_path_free_gb")
