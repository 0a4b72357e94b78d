"""Disk where the run and its caches write; a collector of its own, since a lost network file system hangs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tasks.serve.cache_folder import cache_root
from tasks.validate.collect.findings import Findings
from tasks.validate.collect.request import ProbeRequest


def disk_findings(request: ProbeRequest) -> Findings:
    """Facts of the `disk` group."""
    found = Findings()
    values: dict[str, object] = {
        "run_root_free_bytes": _free_bytes(request.path(request.run_root)) if request.run_root else None,
        "cache_free_bytes": _free_bytes(request.path(str(cache_root().absolute()))),
    }
    if request.run_folder:
        folder = request.path(request.run_folder)
        there = folder.is_dir()
        values["run_folder_writable"] = there and os.access(folder, os.W_OK | os.X_OK)
        values["run_folder_mode"] = folder.stat().st_mode & 0o777 if there else None
    found.put("disk", values, "statvfs, stat")
    return found


def _free_bytes(path: Path) -> int:
    """Free space of the nearest existing folder at or above `path`."""
    return shutil.disk_usage(next(one for one in (path, *path.parents) if one.exists())).free
