"""Reading of the machine: all I/O of the validate stage but the store's round trip.

A collector that fails leaves its facts unobserved and its reason in `NodeFacts.errors`; it never raises.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from profiles.schema import Profile
from tasks.processes.ending import port_is_free
from tasks.processes.ports import port_holder
from tasks.serve.target_digest import cache_root
from tasks.validate.fact_group import FactGroup
from tasks.validate.facts import DiskFacts, DriverFacts, HostFacts, NetFacts, NodeFacts, OsFacts
from tasks.validate.gpu_facts import GpuFacts
from tasks.validate.memory import available_memory, usable_cores
from tasks.validate.requirements import ENGINES, LIBRARIES, PACKAGES, STORES

GPU_PROBE_TIMEOUT_S = 10.0
_DISTRIBUTION = "retrain-dspark"
_OTHER_PACKAGES = ("retrain-dspark", "prefect", "mlflow", "huggingface-hub", "numpy")

Group = TypeVar("Group", bound=FactGroup)


def collect(profile: Profile, run_folder: Path) -> NodeFacts:
    """Everything observed on this node.

    Args:
        run_folder: Folder of the run; the disk below it is the run root's.
    """
    errors: dict[str, str] = {}

    def guarded(name: str, read: Callable[[], Group], empty: Group) -> Group:
        try:
            return read()
        except Exception as error:  # one unreadable fact must not hide the others
            errors[name] = f"{type(error).__name__}: {error}"
            return empty

    gpu = gpu_facts() if profile.hardware.mode != "none" else GpuAnswer()
    if gpu.error:
        errors["gpus"] = gpu.error
    return NodeFacts(
        node_id=platform.node(),
        role="serve+train",
        collected_at=datetime.now(UTC).replace(microsecond=0),
        os=guarded("os", os_facts, OsFacts()),
        driver=gpu.driver,
        gpus=gpu.gpus,
        host=guarded("host", host_facts, HostFacts()),
        disk=guarded("disk", lambda: disk_facts(run_folder), DiskFacts()),
        net=guarded("net", lambda: network_facts(profile), NetFacts()),
        libraries={name: library_error(name) for name in LIBRARIES},
        programs={"mooncake_master": find_program("mooncake_master")},
        versions=installed_versions(),
        errors=errors,
    )


def host_facts() -> HostFacts:
    memory_bytes, limited_by = available_memory()
    return HostFacts(
        python=platform.python_version(),
        cores=usable_cores(),
        memory_available_bytes=memory_bytes,
        memory_limited_by=limited_by,
        lscpu=shutil.which("lscpu"),
    )


def os_facts() -> OsFacts:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    return OsFacts(
        id=release.get("ID"),
        version_id=release.get("VERSION_ID"),
        version=release.get("VERSION"),
        kernel_release=platform.release(),
        machine=platform.machine(),
        page_size_bytes=os.sysconf("SC_PAGESIZE"),
    )


def disk_facts(run_folder: Path) -> DiskFacts:
    return DiskFacts(
        run_root_free_bytes=shutil.disk_usage(_existing(run_folder)).free,
        cache_free_bytes=shutil.disk_usage(_existing(cache_root())).free,
        run_folder_writable=run_folder.is_dir() and os.access(run_folder, os.W_OK | os.X_OK),
        run_folder_mode=run_folder.stat().st_mode & 0o777 if run_folder.is_dir() else None,
    )


def _existing(path: Path) -> Path:
    """The nearest existing folder at or above `path`."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.exists())


def asked_ports(profile: Profile) -> dict[str, tuple[str, int]]:
    """Ports that the profile names for servers that the run itself starts: field -> (host, port)."""
    asked = {"store.rpc_port": (profile.store.host, profile.store.rpc_port)}
    if profile.serve.kind == "launch":
        asked["serve.port"] = (profile.serve.host, profile.serve.port)
    return {field: place for field, place in asked.items() if place[1]}


def network_facts(profile: Profile) -> NetFacts:
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo("localhost", None)}
    except OSError:
        found = set()
    ports = {
        f"{field}={port}": "" if port_is_free(host, port) else port_holder(port)
        for field, (host, port) in asked_ports(profile).items()
    }
    return NetFacts(loopback_addresses=tuple(sorted(found)), ports=ports)


@dataclass(frozen=True)
class GpuAnswer:
    """What `nvidia-smi` said: GPUs and driver, or why it said nothing."""

    driver: DriverFacts = field(default_factory=DriverFacts)
    gpus: tuple[GpuFacts, ...] | None = None
    error: str = ""


def gpu_facts(program: str = "nvidia-smi", timeout_s: float = GPU_PROBE_TIMEOUT_S) -> GpuAnswer:
    """Ask `nvidia-smi` once. A wedged GPU can make it hang, so it runs in a child with a deadline."""
    command = [program, "--query-gpu=index,name,memory.total,driver_version", "--format=csv,noheader,nounits"]
    try:
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
    except FileNotFoundError:
        return GpuAnswer(DriverFacts(loaded=False, module_flavour="none"), (), "nvidia-smi is not installed")
    except OSError as error:
        return GpuAnswer(error=str(error))
    try:
        output, complaint = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        child.kill()  # not waited for: a process in uninterruptible sleep would hold the flow
        return GpuAnswer(error=f"nvidia-smi timed out after {timeout_s:g} s")
    if child.returncode:
        words = (complaint or output).strip().splitlines()
        return GpuAnswer(
            DriverFacts(loaded=False), error=words[0] if words else f"exit status {child.returncode}"
        )
    rows = [[cell.strip() for cell in line.split(",")] for line in output.splitlines()]
    rows = [row for row in rows if len(row) == 4 and row[0].isdigit()]
    gpus = tuple(
        GpuFacts(index=int(row[0]), name=row[1], memory_total_mib=int(row[2]) if row[2].isdigit() else None)
        for row in rows
    )
    driver = DriverFacts(loaded=True, kmd_version=rows[0][3] if rows else None)
    return GpuAnswer(driver, gpus)


def library_error(name: str) -> str:
    """Empty if the shared library loads, else the loader's message."""
    try:
        ctypes.CDLL(name)
    except OSError as error:
        return str(error)
    return ""


def find_program(name: str) -> str | None:
    """A program beside this Python (not its link's target), or on the path."""
    beside = Path(sys.executable).parent / name
    return str(beside) if os.access(beside, os.X_OK) else shutil.which(name)


def installed_versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {}
    for name in (*ENGINES, *STORES, *PACKAGES, *_OTHER_PACKAGES):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def own_requirements() -> list[str]:
    """`Requires-Dist` lines of this project, where it is installed."""
    try:
        return importlib.metadata.requires(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return []
