"""Operating system, kernel module, PCI bus, NUMA nodes and memory, from /etc, /proc and /sys."""

from __future__ import annotations

import os
import platform
import re
import shutil
from pathlib import Path

from tasks.validate.collect.findings import Findings
from tasks.validate.collect.programs import NotInstalled, Unanswered, ask
from tasks.validate.collect.request import ProbeRequest
from tasks.validate.memory import available_memory, usable_cores

MODULE_FILE = "/proc/driver/nvidia/version"
_VERSION = re.compile(r"\s(\d+\.\d+(?:\.\d+)?)\s")
_NVIDIA = "0x10de"
_DISPLAY, _CONTROLLER_3D = "0x0300", "0x0302"


def system_findings(request: ProbeRequest) -> Findings:
    """Facts that need no GPU to answer."""
    found = Findings()
    found.put("os", _os(request), "/etc/os-release, uname, sysconf")
    found.put("host", _host(request), "/proc, /sys/devices/system/node")
    if request.gpus:
        _module(request, found)
        _pci(request, found)
    return found


def _os(request: ProbeRequest) -> dict[str, str | int | None]:
    release = _release(request.path("/etc/os-release")) or _release(request.path("/usr/lib/os-release"))
    return {
        "id": release.get("ID"),
        "version_id": release.get("VERSION_ID"),
        "version": release.get("VERSION"),
        "kernel_release": platform.release(),
        "machine": platform.machine(),
        "page_size_bytes": os.sysconf("SC_PAGESIZE"),
    }


def _release(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    return {name.strip(): value.strip().strip("\"'") for name, value in pairs}


def _host(request: ProbeRequest) -> dict[str, object]:
    proc, cgroup = request.path("/proc"), request.path("/sys/fs/cgroup")
    memory_bytes, limited_by = available_memory(proc, cgroup)
    nodes = list(request.path("/sys/devices/system/node").glob("node[0-9]*"))
    return {
        "python": platform.python_version(),
        "cores": usable_cores(cgroup),
        "memory_available_bytes": memory_bytes,
        "memory_limited_by": limited_by or None,
        "mem_total_mib": _total_mib(proc / "meminfo"),
        "numa_nodes": len(nodes) or None,
        "lscpu": shutil.which("lscpu"),
    }


def _total_mib(meminfo: Path) -> int | None:
    try:
        found = re.search(r"^MemTotal:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found.group(1)) // 1024 if found else None


def _module(request: ProbeRequest, found: Findings) -> None:
    """Version and flavour of the loaded module: an open one calls itself *Open Kernel Module*."""
    try:
        text = request.path(MODULE_FILE).read_text(errors="replace")
    except FileNotFoundError:
        found.put("driver", {"module_flavour": "none"}, MODULE_FILE)
        return
    except OSError as error:
        found.errors["driver.module_flavour"] = f"{MODULE_FILE}: {error.strerror}"
        return
    line = next((one for one in text.splitlines() if one.startswith("NVRM version")), "")
    version = _VERSION.search(line)
    flavour = "open" if "Open Kernel Module" in line else "proprietary" if "Kernel Module" in line else None
    values = {"kmd_version": version.group(1) if version else None, "module_flavour": flavour}
    found.put("driver", values, MODULE_FILE)
    found.put("driver", {"module_license": _license(request)}, "modinfo")


def _license(request: ProbeRequest) -> str | None:
    try:
        answer = ask(("modinfo", "-F", "license", "nvidia"), request.deadline_s / 2)
    except (NotInstalled, Unanswered):
        return None
    return None if answer.status else answer.output.strip() or None


def _pci(request: ProbeRequest, found: Findings) -> None:
    """NVIDIA display and 3D controllers: the bus shows them whether or not a driver takes them."""
    devices = request.path("/sys/bus/pci/devices")
    if not devices.is_dir():
        return
    found.facts["gpus_on_pci"] = sum(
        _word(device / "vendor") == _NVIDIA and _word(device / "class")[:6] in (_DISPLAY, _CONTROLLER_3D)
        for device in devices.iterdir()
    )
    found.sources["gpus_on_pci"] = "/sys/bus/pci/devices"


def _word(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
