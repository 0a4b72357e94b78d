"""`nvidia-smi -q -x` of drivers R580 to R615.

Tags are compared without case and underscores, and renamed ones are listed beside the old: R610 says KMD and
UMD where R580 said driver and CUDA.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from typing import Any

from tasks.validate.collect.findings import Findings
from tasks.validate.collect.smi_fabric import xml_fabric
from tasks.validate.collect.xml_node import XmlNode

SOURCE = "nvidia-smi -q -x"
_LOST = re.compile(
    r"Unable to determine the device handle for (?:GPU|gpu)\s*([0-9A-Fa-f:.]+).*", re.IGNORECASE
)
_LATER = frozenset(
    (
        "recovery_action",
        "channel_repair_pending",
        "unrepairable",
        "retired_pages_pending",
        "sram_threshold_exceeded",
        "slowdown_margin_c",
        "addressing_mode",
        "c2c_enabled",
    )
)
"""Facts that some drivers or GPUs do not list at all; any other one that is missing was not observed."""
_REASONS = {
    "idle": ("gpu_idle",),
    "application_clocks": ("applications_clocks_setting",),
    "power_cap": ("sw_power_cap",),
    "hw_slowdown": ("hw_slowdown",),
    "sync_boost": ("sync_boost",),
    "sw_thermal": ("sw_thermal_slowdown",),
    "hw_thermal": ("hw_thermal_slowdown",),
    "power_brake": ("hw_power_brake_slowdown",),
    "display": ("display_clocks_setting", "display_clock_setting"),
}


def parse_xml(text: str) -> Findings:
    """Facts from the XML text; what is cut or is no XML at all becomes one error."""
    found = Findings()
    for match in _LOST.finditer(text):
        found.errors["gpus"] = match.group(0).strip()
    if "No devices were found" in text:
        return _empty(found)
    start = text.find("<nvidia_smi_log")
    try:
        root = ET.fromstring(text[start:] if start >= 0 else text)
    except ET.ParseError as error:
        found.errors[SOURCE] = f"not well-formed XML ({error}): the output was cut or is no XML"
        return found
    log = XmlNode(root, found, "")
    _driver(log, found)
    gpus = [child for child in root if child.tag == "gpu"]
    attached = log.number("gpus_attached", "attached_gpus")
    found.facts.update(gpus=[_gpu(element, found, index) for index, element in enumerate(gpus)])
    found.facts["gpus_attached"] = len(gpus) if attached is None else attached
    found.sources["gpus"] = SOURCE
    if attached is not None and attached > len(gpus):
        found.errors.setdefault("gpus", f"{attached} GPUs are attached and {len(gpus)} answered: one is lost")
    return found


def _empty(found: Findings) -> Findings:
    """The driver answers and knows no GPU."""
    found.put("driver", {"loaded": True}, SOURCE)
    found.facts.update(gpus=[], gpus_attached=0)
    found.sources["gpus"] = SOURCE
    return found


def _driver(log: XmlNode, found: Findings) -> None:
    version = log.word("driver.kmd_version", "driver_version", "kmd_version")
    found.put("driver", {"loaded": True, "kmd_version": version}, SOURCE)
    found.not_supported.append("driver.umd_version")  # only the library itself tells
    api = log.word("cuda.driver_api", "cuda_version", "cuda_umd_version", "umd_version")
    found.put("cuda", {"driver_api": cuda_api(api)}, SOURCE)


def cuda_api(version: str | None) -> int | None:
    """`13.3` as the driver's number 13030."""
    match = re.fullmatch(r"(\d+)\.(\d+)", version or "")
    return int(match.group(1)) * 1000 + int(match.group(2)) * 10 if match else None


def _gpu(element: ET.Element, found: Findings, index: int) -> dict[str, Any]:
    node = XmlNode(element, found, f"gpus[{index}]", _LATER)
    bus_id = node.word("bus_id", "pci/pci_bus_id") or element.get("id")
    device = node.word("pci_device_id", "pci/pci_device_id")
    return {
        "index": index,
        "bus_id": bus_id and bus_id.upper(),
        "pci_device_id": device and f"0x{device.upper().removeprefix('0X')}",
        **_words(node),
        **_health(node),
        **_load(node),
        "processes": _processes(node),
        "fabric": xml_fabric(node),
        "platform": _platform(node),
        "peer_type": node.silent("platformInfo/peer_type"),
    }


def _words(node: XmlNode) -> dict[str, Any]:
    return {
        "name": node.word("name", "product_name"),
        "uuid": node.word("uuid", "uuid"),
        "serial": node.word("serial", "serial"),
        "arch": node.word("arch", "product_architecture"),
        "vbios": node.word("vbios", "vbios_version"),
        "persistence": node.flag("persistence", "persistence_mode"),
        "compute_mode": node.word("compute_mode", "compute_mode"),
        "addressing_mode": node.word("addressing_mode", "addressing_mode"),
        "c2c_enabled": node.flag("c2c_enabled", "c2c_mode"),
        "mig_current": node.flag("mig_current", "mig_mode/current_mig"),
        "mig_pending": node.flag("mig_pending", "mig_mode/pending_mig"),
        "ecc_current": node.flag("ecc_current", "ecc_mode/current_ecc"),
        "ecc_pending": node.flag("ecc_pending", "ecc_mode/pending_ecc"),
        "recovery_action": node.word("recovery_action", "gpu_recovery_action"),
    }


def _health(node: XmlNode) -> dict[str, Any]:
    volatile, aggregate = "ecc_errors/volatile/", "ecc_errors/aggregate/"
    parts = ("sram_uncorrectable_parity", "sram_uncorrectable_secded")
    everything = (*parts, "dram_uncorrectable")
    return {
        "ecc_uncorr_volatile_dram": node.number("ecc_uncorr_volatile_dram", volatile + "dram_uncorrectable"),
        "ecc_uncorr_volatile_sram": _sum(
            lambda part: node.number("ecc_uncorr_volatile_sram", volatile + part), parts
        ),
        "ecc_uncorr_aggregate": _sum(
            lambda part: node.number("ecc_uncorr_aggregate", aggregate + part), everything
        ),
        "sram_threshold_exceeded": node.flag(
            "sram_threshold_exceeded", aggregate + "sram_threshold_exceeded"
        ),
        "remap_pending": node.flag("remap_pending", "remapped_rows/remapped_row_pending"),
        "remap_failure": node.flag("remap_failure", "remapped_rows/remapped_row_failure"),
        "channel_repair_pending": node.flag("channel_repair_pending", "ecc_errors/channel_repair_pending"),
        "unrepairable": node.flag("unrepairable", "ecc_errors/unrepairable_memory"),
        "retired_pages_pending": node.flag(
            "retired_pages_pending", "retired_pages/pending_retirement", "retired_pages/pending_blacklist"
        ),
    }


def _sum(read: Callable[[str], int | None], parts: tuple[str, ...]) -> int | None:
    """Sum of the counters, or None if one of them was not observed."""
    values = [read(part) for part in parts]
    return None if any(value is None for value in values) else sum(value or 0 for value in values)


def _load(node: XmlNode) -> dict[str, Any]:
    link = "pci/pci_gpu_link_info/"
    return {
        "memory_total_mib": node.number("memory_total_mib", "fb_memory_usage/total"),
        "memory_reserved_mib": node.number("memory_reserved_mib", "fb_memory_usage/reserved"),
        "memory_used_mib": node.number("memory_used_mib", "fb_memory_usage/used"),
        "temperature_c": node.number("temperature_c", "temperature/gpu_temp"),
        "slowdown_margin_c": node.number("slowdown_margin_c", "temperature/gpu_temp_tlimit"),
        "clock_event_reasons": _reasons(node),
        "power_limit_w": node.decimal(
            "power_limit_w", "gpu_power_readings/current_power_limit", "power_readings/power_limit"
        ),
        "pcie_gen": node.number("pcie_gen", link + "pcie_gen/current_link_gen"),
        "pcie_width": node.number("pcie_width", link + "link_widths/current_link_width"),
        "pcie_replays": node.number("pcie_replays", "pci/replay_counter"),
    }


def _reasons(node: XmlNode) -> list[str] | None:
    """Active reasons; None if the driver lists none of them, active or not."""
    active, seen = [], False
    for name, tags in _REASONS.items():
        paths = [
            f"clocks_{kind}_reasons/clocks_{kind}_reason_{tag}"
            for tag in tags
            for kind in ("event", "throttle")
        ]
        word = node.word("clock_event_reasons", *paths)
        seen = seen or word is not None
        if (word or "").lower() == "active":
            active.append(name)
    return active if seen else None


def _processes(node: XmlNode) -> list[dict[str, Any]] | None:
    """Processes that compute; those that only draw (`G`) are left out."""
    listed = node.element("processes")
    node.word("processes", "processes")  # records a refusal that stands in place of the list
    if listed is None or (not len(listed) and (listed.text or "").strip() not in ("", "None")):
        return None
    found = []
    for element in listed:
        process = XmlNode(element, Findings(), "")
        pid = process.number("pid", "pid")
        if pid is None or process.word("type", "type") == "G":
            continue
        name = process.word("name", "process_name")
        used = process.number("used_mib", "used_memory")
        found.append({"pid": pid, "used_mib": used, "name": name and name.split()[0].rsplit("/", 1)[-1]})
    return found


def _platform(node: XmlNode) -> dict[str, Any]:
    return {
        "chassis_serial": node.word("platform.chassis_serial", "platformInfo/chassis_serial_number"),
        "slot": node.number("platform.slot", "platformInfo/slot_number"),
        "tray": node.number("platform.tray", "platformInfo/tray_index"),
        "host_id": node.number("platform.host_id", "platformInfo/host_id"),
        "module_id": node.number("platform.module_id", "platformInfo/module_id"),
    }
