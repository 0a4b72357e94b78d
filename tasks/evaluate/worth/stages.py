"""What the stages of a run took, read from their manifests: the decision inputs count it in GPU-hours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def stage_seconds(run_dir: Path) -> dict[str, float]:
    """Stage -> seconds of the work that made its present result; stages without a manifest are left out."""
    found = {}
    for path in sorted(run_dir.glob("[0-9][0-9]-*/manifest.json")):
        seconds = _read(path).get("seconds")
        if isinstance(seconds, int | float):
            found[path.parent.name[3:]] = float(seconds)
    return found


def gpus_of_node(run_dir: Path) -> int | None:
    """GPUs that the validate stage found on a node, the most of any; None if it found none."""
    result = _read(run_dir / "01-validate" / "manifest.json").get("result")
    nodes = result.get("nodes") if isinstance(result, dict) else None
    counts = [len(node.get("gpus") or ()) for node in nodes or () if isinstance(node, dict)]
    return max(counts, default=0) or None


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
