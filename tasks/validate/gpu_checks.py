"""Checks of GPUs as the plan needs them: number, model, memory, use and modes."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tasks.validate.facts import NodeFacts
from tasks.validate.gpu_facts import GpuFacts
from tasks.validate.registry import node_check
from tasks.validate.requirements import Requirements
from tasks.validate.verdicts import (
    Fault,
    Verdict,
    from_faults,
    missing,
    no_gpu,
    per_gpu,
    skip,
    unobserved,
)

MAX_IDLE_MIB = 1024
"""Memory that an idle GPU may hold: driver and display, no program."""
MAX_PCIE_REPLAYS = 100
MISSING = "not observed"
_LOST = re.compile(r"gpus\[\d+\]")
"""Path of a whole GPU; an error of one of its fields (`gpus[0].serial`) does not make it lost."""


@node_check(
    "gpu.count",
    rule="as many GPUs answer as `hardware.roles.*.gpus_per_node` says (at least one where it is empty), and "
    "none that the driver or the PCI bus counts is lost",
    remedy="check the node's class; a GPU that fell off the bus (Xid 79) needs a reboot or a power cycle. "
    "Without GPUs use a profile with `hardware.mode: none`",
)
def count(facts: NodeFacts, need: Requirements) -> Verdict:
    if need.hardware.mode == "none":
        return skip("the profile runs without GPUs", observed="not asked")
    wanted = need.of_role.gpus_per_node
    required = f"{wanted} GPUs" if wanted else "at least 1 GPU"
    if facts.gpus is None:
        if facts.driver.loaded is False and "driver" not in facts.errors:
            return Verdict("fail", "0", required, "there is no NVIDIA driver", "gpus")
        if facts.driver.loaded is not True:
            return skip("GPUs cannot be counted without a driver; see driver.loaded", observed=MISSING)
        return unobserved("the list of GPUs", required, facts, "gpus")
    have = len(facts.gpus)
    lost = sorted(f"{path}: {why}" for path, why in facts.errors.items() if _LOST.fullmatch(path))
    faults = [Fault("fail", text) for text in lost]
    if not have:
        why = facts.errors.get("gpus", "no GPU enumerated")
        faults.append(Fault("fail", f"{why}; {_on_pci(facts, need)}" if facts.gpus_on_pci else why))
    elif (wanted and have != wanted) or facts.gpus_attached is None:
        text = f"{have} GPUs answer" if facts.gpus_attached is not None else "attached GPUs not observed"
        faults.append(Fault("fail", text))
    elif facts.gpus_attached != have:
        faults.append(Fault("fail", f"the driver counts {facts.gpus_attached} GPUs, {have} answer"))
    elif (facts.gpus_on_pci or 0) > have:
        faults.append(Fault("fail", _on_pci(facts, need)))
    return from_faults(faults, str(have), required, "gpus")


def _on_pci(facts: NodeFacts, need: Requirements) -> str:
    """The PCI bus shows more than answered: usually the module's flavour."""
    flavour = facts.driver.module_flavour or "an unknown"
    wanted = need.hardware.driver.module_flavour
    text = f"the PCI bus shows {facts.gpus_on_pci}, under the {flavour} kernel module"
    return f"{text}; this GPU family needs the {wanted} one" if wanted else text


@node_check(
    "gpu.model",
    rule="every GPU's name matches `gpu_name_regex`, has the wanted `compute_capability`, and all are equal",
    remedy="use nodes of the class that the profile names, or a profile for these",
)
def model(facts: NodeFacts, need: Requirements) -> Verdict:
    role = need.of_role
    pattern, capability = role.gpu_name_regex, role.compute_capability
    kinds = {(gpu.name, gpu.compute_capability) for gpu in facts.gpus or ()}

    def faults(gpu: GpuFacts) -> Iterable[Fault]:
        if gpu.name is None:
            yield Fault("fail", "name not observed")
        elif pattern and not re.search(pattern, gpu.name):
            yield Fault("fail", f"is a {gpu.name}")
        if capability and gpu.compute_capability != capability:
            yield Fault("fail", f"has compute capability {_dotted(gpu.compute_capability)}")
        if len(kinds) > 1 and not pattern:
            yield Fault("fail", f"is a {gpu.name}, others are not")

    required = f"{pattern or 'one model'}, {_dotted(capability) if capability else 'any capability'}"
    return per_gpu(facts, need, required, "name", faults)


def _dotted(capability: tuple[int, int] | None) -> str:
    return f"{capability[0]}.{capability[1]}" if capability else MISSING


@node_check(
    "gpu.memory",
    rule="every GPU has `memory_total_mib_min`, as the driver reports it",
    remedy="use nodes of the class that the profile names: a GPU that reports less than its kind has lost "
    "memory, or is another kind",
)
def memory(facts: NodeFacts, need: Requirements) -> Verdict:
    least = need.of_role.memory_total_mib_min
    if least is None:
        return no_gpu(facts, need) or skip("the profile names no memory size")

    def faults(gpu: GpuFacts) -> Iterable[Fault]:
        if gpu.memory_total_mib is None:
            yield Fault("fail", "memory not observed")
        elif gpu.memory_total_mib < least:
            yield Fault("fail", f"has {gpu.memory_total_mib:,} MiB")

    return per_gpu(facts, need, f"at least {least:,} MiB each", "memory_total_mib", faults)


@node_check(
    "gpu.idle",
    rule="no process computes on any GPU, and less than 1 GiB of each is used",
    remedy="stop the process that the message names, or leave the node out; nothing is ended for you",
)
def idle(facts: NodeFacts, need: Requirements) -> Verdict:
    def faults(gpu: GpuFacts) -> Iterable[Fault]:
        yield from missing(facts, gpu, "processes", "processes")
        for process in gpu.processes or ():
            held = f"{process.used_mib:,} MiB" if process.used_mib is not None else "an unknown amount"
            yield Fault("fail", f"process {process.pid} ({process.name or 'unknown'}) holds {held}")
        if gpu.memory_used_mib is None:
            yield Fault("fail", "used memory not observed")
        elif gpu.memory_used_mib >= MAX_IDLE_MIB and not gpu.processes:
            yield Fault("fail", f"{gpu.memory_used_mib:,} MiB are used by nobody visible")

    return per_gpu(facts, need, f"no process, less than {MAX_IDLE_MIB} MiB used", "processes", faults)


@node_check(
    "gpu.mode",
    rule="MIG is off, now and after the next reset; the compute mode is Default; confidential computing is "
    "off (else a warning)",
    remedy="`nvidia-smi -mig 0`, `nvidia-smi -c 0`, then reset the GPU",
    severity="fail, warn",
)
def mode(facts: NodeFacts, need: Requirements) -> Verdict:
    def faults(gpu: GpuFacts) -> Iterable[Fault]:
        for field, what in (("mig_current", "MIG mode"), ("mig_pending", "pending MIG mode")):
            yield from missing(facts, gpu, field, what)
            if getattr(gpu, field):
                yield Fault("fail", f"{what} is on")
        yield from missing(facts, gpu, "compute_mode", "compute mode")
        if gpu.compute_mode not in (None, "Default"):
            yield Fault("fail", f"compute mode is {gpu.compute_mode}")
        if gpu.cc_enabled:
            yield Fault("warn", "confidential computing is on")

    return per_gpu(facts, need, "MIG off, compute mode Default", "mig_current", faults)


@node_check(
    "gpu.persistence",
    rule="persistence mode is on",
    remedy="start `nvidia-persistenced`, or `nvidia-smi -pm 1`: without it each start initialises the GPU",
    severity="warn",
)
def persistence(facts: NodeFacts, need: Requirements) -> Verdict:
    def faults(gpu: GpuFacts) -> Iterable[Fault]:
        if gpu.persistence is not True:
            yield Fault("warn", "is off" if gpu.persistence is False else MISSING)

    return per_gpu(facts, need, "on", "persistence", faults)


@node_check(
    "gpu.host_link",
    rule="where the role has a `coherent_link`, C2C is enabled and addresses are translated by ATS; PCIe is "
    "16 lanes wide with few replays",
    remedy="check firmware and seating of the module; a reset or reboot restores most links",
    severity="warn",
)
def host_link(facts: NodeFacts, need: Requirements) -> Verdict:
    coherent = need.of_role.coherent_link

    def faults(gpu: GpuFacts) -> Iterable[Fault]:
        if coherent and gpu.c2c_enabled is not True:
            yield Fault("warn", f"C2C {'disabled' if gpu.c2c_enabled is False else MISSING}")
        if coherent and gpu.addressing_mode != "ATS":
            yield Fault("warn", f"addressing mode {gpu.addressing_mode or MISSING}, wanted ATS")
        for fault in (
            *missing(facts, gpu, "pcie_width", "PCIe width"),
            *missing(facts, gpu, "pcie_replays", "PCIe replays"),
        ):
            yield Fault("warn", fault.text)
        if gpu.pcie_width is not None and gpu.pcie_width != 16:
            yield Fault("warn", f"PCIe is {gpu.pcie_width} lanes wide")
        if (gpu.pcie_replays or 0) > MAX_PCIE_REPLAYS:
            yield Fault("warn", f"{gpu.pcie_replays} PCIe replays")

    required = "C2C with ATS, PCIe x16" if coherent else "PCIe x16"
    return per_gpu(facts, need, required, "pcie_width", faults)
