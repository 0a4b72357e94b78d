"""Identity, modes, memory health, load and host link of one GPU, from NVML."""

from __future__ import annotations

import re
from ctypes import byref
from pathlib import Path
from typing import Any

from tasks.validate.collect.nvml_reader import Reader, field_value, text

MIB = 2**20
FI_RECOVERY_ACTION = 230
_ARCHITECTURES = {6: "Turing", 7: "Ampere", 8: "Ada", 9: "Hopper", 10: "Blackwell", 13: "Rubin"}
_COMPUTE_MODES = {0: "Default", 1: "Exclusive_Thread", 2: "Prohibited", 3: "Exclusive_Process"}
_ADDRESSING = {0: "None", 1: "HMM", 2: "ATS"}
_RECOVERY = (
    "None",
    "GPU Reset",
    "Node Reboot",
    "Drain P2P",
    "Drain and Reset",
    "Recover IMEX Domain",
    "Bus Reset",
    "System Reboot",
)
REASONS = (
    "idle",
    "application_clocks",
    "power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal",
    "hw_thermal",
    "power_brake",
    "display",
)
"""Bits of the clock event reasons, from bit 0."""


def gpu_facts(read: Reader, handle: Any) -> dict[str, Any]:
    """Facts of one GPU but its links, fabric and place."""
    parts = (_identity, _modes, _memory_health, _load, _host_link)
    return {name: value for part in parts for name, value in part(read, handle).items()}


def _identity(read: Reader, handle: Any) -> dict[str, Any]:
    nvml = read.nvml
    pci = read.get("bus_id", lambda: nvml.nvmlDeviceGetPciInfo(handle), ("pci_device_id",))
    arch = read.get("arch", lambda: int(nvml.nvmlDeviceGetArchitecture(handle)))
    return {
        "name": read.get("name", lambda: text(nvml.nvmlDeviceGetName(handle))),
        "uuid": read.get("uuid", lambda: text(nvml.nvmlDeviceGetUUID(handle))),
        "serial": read.get("serial", lambda: text(nvml.nvmlDeviceGetSerial(handle))),
        "vbios": read.get("vbios", lambda: text(nvml.nvmlDeviceGetVbiosVersion(handle))),
        "bus_id": pci and text(pci.busId).upper(),
        "pci_device_id": pci and f"0x{pci.pciDeviceId:08X}",
        "arch": None if arch is None else _ARCHITECTURES.get(arch, f"architecture {arch}"),
        "compute_capability": read.get(
            "compute_capability", lambda: list(nvml.nvmlDeviceGetCudaComputeCapability(handle))
        ),
    }


def _modes(read: Reader, handle: Any) -> dict[str, Any]:
    nvml = read.nvml
    mig = read.get(
        "mig_current", lambda: [bool(mode) for mode in nvml.nvmlDeviceGetMigMode(handle)], ("mig_pending",)
    )
    ecc = read.get(
        "ecc_current", lambda: [bool(mode) for mode in nvml.nvmlDeviceGetEccMode(handle)], ("ecc_pending",)
    )
    compute = read.get("compute_mode", lambda: int(nvml.nvmlDeviceGetComputeMode(handle)))
    addressing = read.get("addressing_mode", lambda: nvml.nvmlDeviceGetAddressingMode(handle))
    return {
        "cc_enabled": read.get("cc_enabled", lambda: bool(nvml.nvmlSystemGetConfComputeState().ccFeature)),
        "persistence": read.get("persistence", lambda: bool(nvml.nvmlDeviceGetPersistenceMode(handle))),
        "compute_mode": None if compute is None else _COMPUTE_MODES.get(compute, f"mode {compute}"),
        "mig_current": mig and mig[0],
        "mig_pending": mig and mig[1],
        "ecc_current": ecc and ecc[0],
        "ecc_pending": ecc and ecc[1],
        "addressing_mode": None if addressing is None else _ADDRESSING.get(addressing, str(addressing)),
        "c2c_enabled": read.get(
            "c2c_enabled", lambda: bool(nvml.nvmlDeviceGetC2cModeInfoV(handle).isC2cEnabled)
        ),
    }


def _memory_health(read: Reader, handle: Any) -> dict[str, Any]:
    nvml = read.nvml

    def sram() -> Any:
        status = nvml.c_nvmlEccSramErrorStatus_v1_t()
        nvml.nvmlDeviceGetSramEccErrorStatus(handle, byref(status))
        return status

    def uncorrected(place: str) -> int:
        kind, counter = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        return int(nvml.nvmlDeviceGetMemoryErrorCounter(handle, kind, counter, getattr(nvml, place)))

    status = read.get("sram_threshold_exceeded", sram)
    rows = read.get("remap_pending", lambda: nvml.nvmlDeviceGetRemappedRows(handle), ("remap_failure",))
    return {
        "ecc_uncorr_volatile_dram": read.get(
            "ecc_uncorr_volatile_dram", lambda: uncorrected("NVML_MEMORY_LOCATION_DRAM")
        ),
        "ecc_uncorr_volatile_sram": int(status.volatileUncParity + status.volatileUncSecDed)
        if status
        else read.get("ecc_uncorr_volatile_sram", lambda: uncorrected("NVML_MEMORY_LOCATION_SRAM")),
        "ecc_uncorr_aggregate": read.get("ecc_uncorr_aggregate", lambda: _aggregate(nvml, handle)),
        "sram_threshold_exceeded": bool(status.bThresholdExceeded) if status else None,
        "remap_pending": rows and bool(rows[2]),
        "remap_failure": rows and bool(rows[3]),
        "channel_repair_pending": read.get(
            "channel_repair_pending", lambda: bool(nvml.nvmlDeviceGetRepairStatus(handle)[0])
        ),
        "unrepairable": read.get(
            "unrepairable", lambda: bool(nvml.nvmlDeviceGetUnrepairableMemoryFlag_v1(handle))
        ),
        "retired_pages_pending": read.get(
            "retired_pages_pending", lambda: bool(nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle))
        ),
        "recovery_action": read.get("recovery_action", lambda: _recovery(nvml, handle)),
    }


def _aggregate(nvml: Any, handle: Any) -> int:
    kind, counter = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_AGGREGATE_ECC
    return int(nvml.nvmlDeviceGetTotalEccErrors(handle, kind, counter))


def _recovery(nvml: Any, handle: Any) -> str:
    action = field_value(nvml, handle, FI_RECOVERY_ACTION)
    return _RECOVERY[action] if action < len(_RECOVERY) else f"action {action}"


def _load(read: Reader, handle: Any) -> dict[str, Any]:
    nvml = read.nvml
    memory = read.get(
        "memory_total_mib", lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    )
    bits = read.first(
        "clock_event_reasons",
        lambda: int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)),
        lambda: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
    )
    limit = read.get("power_limit_w", lambda: nvml.nvmlDeviceGetPowerManagementLimit(handle) / 1000)
    running = read.first(
        "processes",
        lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle),
        lambda: nvml.nvmlDeviceGetComputeRunningProcesses_v2(handle),
    )
    return {
        "memory_total_mib": memory and memory.total // MIB,
        "memory_reserved_mib": None if memory is None else memory.reserved // MIB,
        "memory_used_mib": None if memory is None else memory.used // MIB,
        "clock_event_reasons": None
        if bits is None
        else [reason for bit, reason in enumerate(REASONS) if bits >> bit & 1],
        "power_limit_w": limit,
        "temperature_c": read.first(
            "temperature_c",
            lambda: int(nvml.nvmlDeviceGetTemperatureV(handle, 0)),
            lambda: int(nvml.nvmlDeviceGetTemperature(handle, 0)),
        ),
        "slowdown_margin_c": read.get(
            "slowdown_margin_c", lambda: int(nvml.nvmlDeviceGetMarginTemperature(handle))
        ),
        "processes": None if running is None else [_process(read, one) for one in running],
    }


def _process(read: Reader, process: Any) -> dict[str, Any]:
    """Without its folder: paths of a shared machine are nobody's business in a report."""
    name = read.quiet(lambda: text(read.nvml.nvmlSystemGetProcessName(process.pid)))
    used = process.usedGpuMemory
    return {
        "pid": int(process.pid),
        "used_mib": None if used is None else used // MIB,
        "name": re.split(r"\s", Path(name).name)[0] if name else None,
    }


def _host_link(read: Reader, handle: Any) -> dict[str, Any]:
    nvml = read.nvml
    return {
        "pcie_gen": read.get("pcie_gen", lambda: int(nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle))),
        "pcie_width": read.get("pcie_width", lambda: int(nvml.nvmlDeviceGetCurrPcieLinkWidth(handle))),
        "pcie_replays": read.get("pcie_replays", lambda: int(nvml.nvmlDeviceGetPcieReplayCounter(handle))),
    }
