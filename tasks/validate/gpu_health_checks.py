"""Checks of GPU health: memory errors, repairs, temperature, and what the driver wrote into the log."""

from __future__ import annotations

from collections.abc import Iterable

from tasks.validate.facts import NodeFacts, Xid
from tasks.validate.gpu_facts import GpuFacts
from tasks.validate.models import Status
from tasks.validate.registry import node_check
from tasks.validate.requirements import Requirements
from tasks.validate.verdicts import Fault, Verdict, from_faults, missing, no_gpu, per_gpu, skip, unobserved

MIN_MARGIN_C = 5
SLOWED = {
    "hw_slowdown": "slowed down by hardware",
    "hw_thermal": "slowed down by heat",
    "power_brake": "slowed down by the power brake",
}
HINTS = {"sw_thermal": "the driver lowers clocks for heat", "power_cap": "the power cap binds"}
FATAL_XIDS = {
    48: "uncorrectable memory error: drain, then reset the GPU",
    64: "row remapping failed: replace the GPU",
    74: "NVLink error: reset the GPU; if it returns, check cable and switch",
    79: "GPU fell off the bus: power-cycle the node",
    95: "uncontained memory error: reset the GPU",
    119: "GPU firmware did not answer: reset the GPU",
    120: "GPU firmware error: reset the GPU",
    140: "unrecovered memory error: reset the GPU",
    143: "GPU did not initialise: reboot; if it returns, replace the GPU",
    **dict.fromkeys(range(144, 151), "NVLink error: reset the GPU; if it returns, check the switch"),
}
"""Xid -> what it means and what to do. Errors of programs (13, 31, 43, 45) are not here."""
WARNING_XIDS = {
    63: "a row was remapped: reset the GPU before the run",
    92: "many corrected memory errors",
    94: "contained memory error: one program ended",
    121: "corrected C2C link error",
}


@node_check(
    "gpu.ecc",
    rule="ECC is on and stays on; no uncorrectable error since the last reset; the SRAM threshold is not "
    "exceeded. Errors of the past are a warning; a GPU without ECC is skipped",
    remedy="drain the node and reset the GPU; if the errors return, have it replaced",
    severity="fail, warn",
)
def ecc(facts: NodeFacts, need: Requirements) -> Verdict:
    gate = no_gpu(facts, need)
    if gate is None and not any(_has_ecc(facts, gpu) for gpu in facts.gpus or ()):
        return skip("these GPUs have no ECC", observed="not supported")
    return per_gpu(
        facts, need, "on, no uncorrectable error", "ecc_current", lambda gpu: _ecc_faults(facts, gpu)
    )


def _has_ecc(facts: NodeFacts, gpu: GpuFacts) -> bool:
    return gpu.ecc_current is not None or facts.supported(f"gpus[{gpu.index}].ecc_current")


def _ecc_faults(facts: NodeFacts, gpu: GpuFacts) -> Iterable[Fault]:
    required = {
        "ecc_current": "ECC mode",
        "ecc_pending": "pending ECC mode",
        "ecc_uncorr_volatile_dram": "uncorrectable DRAM errors",
        "ecc_uncorr_volatile_sram": "uncorrectable SRAM errors",
        "sram_threshold_exceeded": "SRAM threshold",
    }
    for field, what in required.items():
        yield from missing(facts, gpu, field, what)
    if gpu.ecc_current is False:
        yield Fault("fail", "ECC is off")
    elif gpu.ecc_pending is False:
        yield Fault("fail", "ECC goes off with the next reset")
    now = (gpu.ecc_uncorr_volatile_dram or 0) + (gpu.ecc_uncorr_volatile_sram or 0)
    if gpu.ecc_uncorr_volatile_dram:
        yield Fault("fail", f"{gpu.ecc_uncorr_volatile_dram} uncorrectable DRAM errors since the last reset")
    if gpu.ecc_uncorr_volatile_sram:
        yield Fault("fail", f"{gpu.ecc_uncorr_volatile_sram} uncorrectable SRAM errors since the last reset")
    if gpu.sram_threshold_exceeded:
        yield Fault("fail", "the threshold of SRAM errors is exceeded")
    if gpu.ecc_uncorr_aggregate and not now:
        yield Fault("warn", f"{gpu.ecc_uncorr_aggregate} uncorrectable errors in its life")


@node_check(
    "gpu.memory_repair",
    rule="no row remapping, channel repair or page retirement is pending, none has failed, and no memory is "
    "beyond repair; a GPU that does not tell is a warning",
    remedy="pending: reset the GPU before the run, the bad row is still in use. Failed or beyond repair: "
    "have the GPU replaced",
    severity="fail, warn",
)
def memory_repair(facts: NodeFacts, need: Requirements) -> Verdict:
    words = {
        "remap_pending": "row remapping is pending: reset or reboot",
        "remap_failure": "row remapping failed: replace the GPU",
        "channel_repair_pending": "a channel repair is pending: reset or reboot",
        "unrepairable": "memory is beyond repair: replace the GPU",
        "retired_pages_pending": "page retirement is pending: reset or reboot",
    }

    def faults(gpu: GpuFacts) -> Iterable[Fault]:
        for field, text in words.items():
            if field != "retired_pages_pending":  # what older GPUs have instead of row remapping
                yield from missing(facts, gpu, field, field.replace("_", " "))
            if getattr(gpu, field):
                yield Fault("fail", text)
        if all(getattr(gpu, field) is None for field in words):
            yield Fault("warn", "does not tell about repairs")

    return per_gpu(facts, need, "nothing pending, failed or beyond repair", "remap_pending", faults)


@node_check(
    "gpu.recovery_action",
    rule="the driver asks for no recovery action",
    remedy="do what the message names (reset, reboot, drain), then check again",
)
def recovery_action(facts: NodeFacts, need: Requirements) -> Verdict:
    path = "gpus[{}].recovery_action"
    gpus = facts.gpus or ()
    if gpus and all(g.recovery_action is None and not facts.supported(path.format(g.index)) for g in gpus):
        return no_gpu(facts, need) or skip("this driver does not tell", observed="not supported")

    def faults(gpu: GpuFacts) -> Iterable[Fault]:
        yield from missing(facts, gpu, "recovery_action", "recovery action")
        if gpu.recovery_action not in (None, "None"):
            yield Fault("fail", f"asks for: {gpu.recovery_action}")

    return per_gpu(facts, need, "None", "recovery_action", faults)


@node_check(
    "gpu.thermal",
    rule="no slowdown by hardware, heat or power brake, and more than 5 degrees are left until one; a power "
    "cap or clocks lowered by the driver are a warning",
    remedy="check cooling and power supply of the node",
    severity="fail, warn",
)
def thermal(facts: NodeFacts, need: Requirements) -> Verdict:
    def faults(gpu: GpuFacts) -> Iterable[Fault]:
        yield from missing(facts, gpu, "clock_event_reasons", "clock events")
        yield from missing(facts, gpu, "slowdown_margin_c", "margin to the slowdown")
        for reason in gpu.clock_event_reasons or ():
            if reason in SLOWED:
                yield Fault("fail", SLOWED[reason])
            elif reason in HINTS:
                yield Fault("warn", HINTS[reason])
        if gpu.slowdown_margin_c is not None and gpu.slowdown_margin_c <= MIN_MARGIN_C:
            yield Fault("fail", f"{gpu.slowdown_margin_c} degrees to the slowdown")

    return per_gpu(facts, need, f"no slowdown, margin above {MIN_MARGIN_C} C", "clock_event_reasons", faults)


@node_check(
    "xid.recent",
    rule="no fatal Xid since boot; a log that may not be read is a warning",
    remedy="do what the message names for the Xid, then reboot: the check looks back to the boot. To read "
    "the log, add the user to the group `adm` or `systemd-journal`",
    severity="fail, warn",
)
def xids(facts: NodeFacts, need: Requirements) -> Verdict:
    if need.hardware.mode == "none":
        return skip("the profile runs without GPUs", observed="not asked")
    found, required = facts.host.xids, "no fatal Xid"
    if found is None:
        status: Status = "fail" if facts.supported("host.xids") else "warn"
        return unobserved("the kernel log", required, facts, "host.xids", status)
    faults = [fault for xid in found for fault in _xid_faults(xid)]
    codes = ", ".join(str(code) for code in sorted({xid.code for xid in found}))
    return from_faults(faults, f"Xid {codes}" if found else "none", required, "host.xids")


def _xid_faults(xid: Xid) -> Iterable[Fault]:
    where = f" on {xid.gpu}" if xid.gpu else ""
    if xid.code in FATAL_XIDS:
        yield Fault("fail", f"Xid {xid.code}{where}: {FATAL_XIDS[xid.code]}")
    elif xid.code in WARNING_XIDS:
        yield Fault("warn", f"Xid {xid.code}{where}: {WARNING_XIDS[xid.code]}")
