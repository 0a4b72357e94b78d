"""Memory and cores that this process may really use: kernel and cgroup, version 1 and 2."""

from __future__ import annotations

import os
from pathlib import Path

_UNLIMITED = 1 << 60
"""cgroup v1 writes a number near 2^63 where there is no limit."""


def available_memory(
    proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")
) -> tuple[int | None, str]:
    """Bytes that can still be taken, and who limits them (`kernel` or `cgroup`)."""
    answers = [
        (size, name)
        for size, name in (
            (_kernel_available(proc / "meminfo"), "kernel"),
            *((_cgroup_available(folder), "cgroup") for folder in _cgroup_folders(proc, cgroup)),
        )
        if size is not None
    ]
    return min(answers) if answers else (None, "")


def _kernel_available(meminfo: Path) -> int | None:
    try:
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def _cgroup_folders(proc: Path, root: Path) -> list[Path]:
    """This process's cgroup and every one above it: each may carry the limit that binds."""
    folders = [root, root / "memory"]
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "memory" not in controllers.split(","):
            continue
        base = root / "memory" if controllers else root
        inner = base / path.strip("/")
        folders += [f for f in (inner, *inner.parents) if f != base and base in f.parents]
    return folders


def _cgroup_available(folder: Path) -> int | None:
    """Limit minus what is used and cannot be dropped; None without a limit."""
    for limit_name, usage_name, reclaimable in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit, usage = _number(folder / limit_name), _number(folder / usage_name)
        if limit is None or usage is None or limit >= _UNLIMITED:
            continue
        return max(0, limit - max(0, usage - _stat(folder / "memory.stat", reclaimable)))
    return None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _stat(path: Path, key: str) -> int:
    try:
        pairs = (line.split() for line in path.read_text().splitlines())
        return next((int(pair[1]) for pair in pairs if pair[0] == key), 0)
    except (OSError, ValueError, IndexError):
        return 0


def usable_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> float:
    """Cores by affinity, or fewer where the cgroup's quota says so."""
    affinity = float(len(os.sched_getaffinity(0)))
    quota = _quota_v2(cgroup / "cpu.max")
    if quota is None:
        micros, period = _number(cgroup / "cpu/cpu.cfs_quota_us"), _number(cgroup / "cpu/cpu.cfs_period_us")
        quota = micros / period if micros and period and micros > 0 else None
    return min(affinity, quota) if quota else affinity


def _quota_v2(path: Path) -> float | None:
    try:
        micros, period = path.read_text().split()
        return None if micros == "max" else int(micros) / int(period)
    except (OSError, ValueError):
        return None
