"""NVLink fabric, rack position and links of one GPU, from NVML's structures."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from ctypes import byref
from typing import Any

from tasks.validate.collect.nvml_reader import Reader, field_value, field_values, text

FI_LINK_COUNT, FI_SPEED, FI_STATE = 91, 164, 165
_COMPLETED = 3
_STATES = {0: "Not Supported", 1: "Not Started", 2: "In Progress", 3: "Completed"}
_SUMMARIES = {0: "Not Supported", 1: "Healthy", 2: "Unhealthy", 3: "Limited Capacity"}
_LINK_STATES = {0: "inactive", 1: "active", 2: "sleep", 3: "active-traffic-disabled"}
_REMOTES = {0: "gpu", 1: "cpu", 2: "switch"}
_UNICAST_POINTER = 0


def fabric(read: Reader, handle: Any) -> dict[str, Any]:
    """Registration and health. Structure 3 first: it has clique and health, and R580 to R615 know it."""
    nvml = read.nvml

    def by_version(name: str) -> Any:
        info = getattr(nvml, name)()
        nvml.nvmlDeviceGetGpuFabricInfoV(handle, byref(info))
        return info

    def version_4() -> Any:
        info = nvml.c_nvmlGpuFabricInfo_v4_t()
        nvml.nvmlDeviceGetGpuFabricInfo_v4(handle, byref(info))
        return info

    info = read.first(
        "fabric.state",
        lambda: by_version("c_nvmlGpuFabricInfo_v3_t"),
        version_4,
        lambda: by_version("c_nvmlGpuFabricInfo_v2_t"),
    )
    return {} if info is None else _fabric(read, info)


def _fabric(read: Reader, info: Any) -> dict[str, Any]:
    """Status, UUID and clique mean nothing until the state is *Completed*."""
    state = info.state & 0xFF  # the header has one byte; the binding reads three of padding with it
    found: dict[str, Any] = {
        "state": _STATES.get(state, f"unknown ({state})"),
        "health_mask": int(info.healthMask),
    }
    if not hasattr(info, "healthSummary"):
        read.findings.not_supported.append(f"{read.prefix}.fabric.health_summary")
    else:
        found["health_summary"] = _SUMMARIES.get(info.healthSummary, f"unknown ({info.healthSummary})")
    if state == _COMPLETED:
        found["status"] = "Success" if info.status == 0 else text(read.nvml.nvmlErrorString(info.status))
        found["cluster_uuid"] = str(uuid.UUID(bytes=bytes(info.clusterUuid)))
        found["clique_id"] = _clique(info)
    return found


def _clique(info: Any) -> int | None:
    """Structure 4 lists cliques by kind; the clique of the others is its first for unicast pointers."""
    if hasattr(info, "cliqueId"):
        return int(info.cliqueId)
    listed = list(info.cliques)[: info.numCliques]
    return next((int(clique.id) for clique in listed if clique.type == _UNICAST_POINTER), None)


def platform(read: Reader, handle: Any) -> dict[str, Any]:
    """Place in the rack, from the structure's bytes.

    The binding decodes them as UTF-8 on access, which a GUID or a slot above 127 does not survive.
    """

    def ask() -> bytes:
        info = read.nvml.c_nvmlPlatformInfo_v2_t()
        read.nvml.nvmlDeviceGetPlatformInfo(handle, byref(info))
        return bytes(memoryview(info).cast("B"))

    raw = read.get("platform", ask)
    if raw is None:
        return {}
    serial = raw[20:36].split(b"\0")[0].decode("ascii", "backslashreplace").strip()
    slot, tray, host_id, _peer, module = raw[36:41]
    return {
        "chassis_serial": serial or None,
        "slot": slot,
        "tray": tray,
        "host_id": host_id,
        "module_id": module,
    }


def nvlinks(read: Reader, handle: Any) -> list[dict[str, Any]] | None:
    """Links of a GPU; empty if it has none, None if it could not be asked."""
    nvml = read.nvml

    def ask() -> list[dict[str, Any]]:
        count = field_value(nvml, handle, FI_LINK_COUNT)
        wanted = [(field, link) for link in range(count) for field in (FI_STATE, FI_SPEED)]
        answers = field_values(nvml, handle, wanted) if wanted else []
        return [_link(read, handle, n, answers[2 * n], answers[2 * n + 1]) for n in range(count)]

    return read.get("nvlinks", ask)


def _link(read: Reader, handle: Any, link: int, state: int | None, speed: int | None) -> dict[str, Any]:
    nvml = read.nvml
    if state is None:  # drivers before R550 know only active and inactive
        state = read.quiet(lambda: int(nvml.nvmlDeviceGetNvLinkState(handle, link)))
    found: dict[str, Any] = {
        "link": link,
        "state": None if state is None else _LINK_STATES.get(state, str(state)),
    }
    if not state:
        return found
    version = read.quiet(lambda: int(nvml.nvmlDeviceGetNvLinkVersion(handle, link)))
    remote = read.quiet(lambda: int(nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link)))
    kind = None if remote is None else _REMOTES.get(remote, "unknown")
    return {**found, "speed_mb_s": speed, "version": version, "remote": kind}


def peers(read: Reader, handles: dict[int, Any]) -> list[dict[str, Any]]:
    """Peer access over NVLink between every two GPUs of the node, in both directions."""
    nvml = read.nvml

    def asked(one: int, other: int) -> Callable[[], int]:
        return lambda: int(nvml.nvmlDeviceGetP2PStatus(handles[one], handles[other], 2))

    found = []
    for one in handles:
        for other in handles:
            status = read.quiet(asked(one, other)) if one != other else None
            if status is not None:
                found.append(
                    {"from_gpu": one, "to_gpu": other, "nvlink_p2p": _P2P.get(status, f"status {status}")}
                )
    return found


_P2P = {
    0: "ok",
    1: "chipset not supported",
    2: "GPU not supported",
    3: "topology not supported",
    4: "disabled by a registry key",
    5: "not supported",
    6: "unknown",
}
