"""Driver and GPUs as NVML tells them. It can hang on a wedged GPU: run it in a process with a deadline."""

from __future__ import annotations

import importlib
from typing import Any

from tasks.validate.collect.findings import Findings
from tasks.validate.collect.nvml_fabric import fabric, nvlinks, peers, platform
from tasks.validate.collect.nvml_gpu import gpu_facts
from tasks.validate.collect.nvml_reader import (
    DRIVER_NOT_LOADED,
    LIBRARY_NOT_FOUND,
    VERSION_MISMATCH,
    LostGpu,
    Reader,
    text,
    words,
)

MISMATCH = (
    "the loaded kernel module and the user-space library differ, as after an upgrade without a reboot: "
    "reload the nvidia modules or reboot"
)


def nvml_findings(nvml: Any = None) -> Findings:
    """Everything that NVML says about this node; it never raises.

    Args:
        nvml: The binding; None imports `pynvml`.
    """
    found = Findings()
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            found.errors["nvml"] = "nvidia-ml-py is not installed: only nvidia-smi was asked"
            return found
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        _not_initialised(Reader(nvml, found), error)
        return found
    try:
        _read(nvml, found)
    except Exception as error:  # a fault of the library must not hide what was read before it
        found.errors["nvml"] = f"{type(error).__name__}: {error}"
    finally:
        Reader(nvml, found).quiet(nvml.nvmlShutdown)
    return found


def _not_initialised(read: Reader, error: Any) -> None:
    """No driver is a fact of a machine without GPUs; a mismatch or another refusal is a fault."""
    found, code = read.findings, error.value
    found.put("driver", {"loaded": False, "umd_version": _library_version(read)}, "nvml")
    if code == VERSION_MISMATCH:
        found.errors["driver"] = f"{words(error)}: {MISMATCH}"
    elif code == DRIVER_NOT_LOADED:
        found.errors["driver"] = "the NVML library is installed, but the nvidia kernel module is not loaded"
        found.facts["gpus"] = []
    elif code != LIBRARY_NOT_FOUND:
        found.errors["driver"] = f"NVML could not be initialised: {words(error)}"


def _library_version(read: Reader) -> str | None:
    """Version of the user-space library: NVML's own is `13.610.57.04`, the CUDA major before the driver's."""
    version = read.quiet(lambda: text(read.nvml.nvmlSystemGetNVMLVersion()))
    parts = version.split(".") if version else []
    return ".".join(parts[1:]) if len(parts) >= 3 else None


def _read(nvml: Any, found: Findings) -> None:
    read = Reader(nvml, found)
    driver = {
        "loaded": True,
        "kmd_version": read.get("driver.kmd_version", lambda: text(nvml.nvmlSystemGetDriverVersion())),
        "umd_version": _library_version(read),
    }
    found.put("driver", driver, "nvml")
    # Without _v2 NVML makes up a version where libcuda is missing.
    api = read.get("cuda.driver_api", lambda: int(nvml.nvmlSystemGetCudaDriverVersion_v2()))
    found.put("cuda", {"driver_api": api}, "nvml")
    count = read.get("gpus", lambda: int(nvml.nvmlDeviceGetCount()))
    if count is None:
        return
    found.facts.update(gpus_attached=count, gpus=[])
    found.sources["gpus"] = "nvml"
    handles: dict[int, Any] = {}
    for index in range(count):
        gpu = _gpu(nvml, found, index, handles)
        if gpu:
            found.facts["gpus"].append(gpu)
    found.facts["gpu_peers"] = peers(read, handles)


def _gpu(nvml: Any, found: Findings, index: int, handles: dict[int, Any]) -> dict[str, Any] | None:
    """One GPU, or None with the reason recorded under `gpus[index]`."""
    read = Reader(nvml, found, f"gpus[{index}]")
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        gpu = {"index": index, **gpu_facts(read, handle), "nvlinks": nvlinks(read, handle)}
        gpu |= {"fabric": fabric(read, handle), "platform": platform(read, handle)}
    except (nvml.NVMLError, LostGpu) as error:
        found.errors[f"gpus[{index}]"] = words(error)
        return None
    handles[index] = handle
    return gpu
