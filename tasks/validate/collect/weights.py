"""Room for the target's weights. A network file system that is gone hangs: hence a collector of its own."""

from __future__ import annotations

import shutil

from tasks.validate.collect.findings import Findings
from tasks.validate.collect.request import ProbeRequest


def weights_findings(request: ProbeRequest) -> Findings:
    """Free space where the weights lie or will lie, and whether a checkpoint is there."""
    found = Findings()
    if not request.weights_path:
        return found
    wanted = request.path(request.weights_path)
    folder = next((one for one in (wanted, *wanted.parents) if one.is_dir()), None)
    values = {
        "weights_path_free_gb": round(shutil.disk_usage(folder).free / 1e9, 1) if folder else None,
        "weights_present": (wanted / "config.json").is_file() and any(wanted.glob("*.safetensors")),
    }
    found.put("host", values, "the target's folder")
    return found
