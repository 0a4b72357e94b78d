"""Ports of RDMA devices from /sys/class/infiniband."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tasks.validate.collect.findings import Findings
from tasks.validate.collect.request import ProbeRequest

SOURCE = "/sys/class/infiniband"
_ZERO_GID = re.compile(r"^[0:]*$")
_LINK_LOCAL_ONLY = re.compile(r"^fe80:0000:0000:0000:0000:0000:0000:0000$")


def rdma_findings(request: ProbeRequest) -> Findings:
    """Every port of every device; none is a fact, an unreadable device is an error beside the others."""
    found = Findings()
    devices = request.path(SOURCE)
    ports: list[dict[str, Any]] = []
    for device in sorted(devices.iterdir()) if devices.is_dir() else ():
        try:
            ports += [_port(device, folder, request) for folder in sorted((device / "ports").iterdir())]
        except (OSError, ValueError) as error:
            found.errors[f"rdma.{device.name}"] = f"{type(error).__name__}: {error}"
    found.facts["rdma"] = ports
    found.sources["rdma"] = SOURCE
    return found


def _port(device: Path, folder: Path, request: ProbeRequest) -> dict[str, Any]:
    gids = [gid for path in _numbered(folder / "gids") if (gid := _word(path)) and _good(gid)]
    layer = _word(folder / "link_layer")
    return {
        "device": device.name,
        "port": int(folder.name),
        "hca_type": _word(device / "hca_type"),
        "fw": _word(device / "fw_ver"),
        "state": _named(_word(folder / "state")),
        "phys_state": _named(_word(folder / "phys_state")),
        "link_layer": layer,
        "rate_gbps": _rate(_word(folder / "rate")),
        "uverbs": _uverbs(device, request),
        "numa": _integer(_word(device / "device" / "numa_node")),
        "link_downed": _integer(_word(folder / "counters" / "link_downed")),
        "gid_ok": bool(gids),
        # The prefix of an Ethernet GID says nothing of what it reaches: routes decide there.
        "subnet": ":".join(gids[0].split(":")[:4]) if gids and layer == "InfiniBand" else None,
    }


def _numbered(folder: Path) -> list[Path]:
    """Entries of a table in the order of their numbers; none if the folder is not there."""
    try:
        return sorted(folder.iterdir(), key=lambda path: (len(path.name), path.name))
    except OSError:
        return []


def _word(path: Path) -> str | None:
    """A file's text; an attribute that this device does not have, or refuses (EINVAL), is not observed."""
    try:
        return path.read_text(errors="replace").strip() or None
    except OSError:
        return None


def _named(word: str | None) -> str | None:
    """`4: ACTIVE` without its number."""
    return word.split(":", 1)[-1].strip() if word else None


def _rate(word: str | None) -> float | None:
    """`800 Gb/sec (4X XDR)` in Gb/s."""
    found = re.match(r"(\d+(?:\.\d+)?) Gb/sec", word or "")
    return float(found.group(1)) if found else None


def _integer(word: str | None) -> int | None:
    try:
        return int(word) if word else None
    except ValueError:
        return None


def _good(gid: str) -> bool:
    return not _ZERO_GID.match(gid) and not _LINK_LOCAL_ONLY.match(gid)


def _uverbs(device: Path, request: ProbeRequest) -> bool:
    """The device node through which a process would register memory."""
    names = [path.name for path in (device / "device" / "infiniband_verbs").glob("uverbs*")]
    return any(request.path(f"/dev/infiniband/{name}").exists() for name in names)
