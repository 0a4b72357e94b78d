"""The `fabric` element of `nvidia-smi -q -x`: words where NVML has numbers."""

from __future__ import annotations

from typing import Any

from tasks.validate.collect.xml_node import XmlNode
from tasks.validate.fabric_health import FIELDS, encode

_GOOD = {"full": True, "false": True, "none": True, "degraded": False, "true": False}
_YES = {"true": True, "yes": True, "connected": True, "false": False, "no": False, "disconnected": False}
_FAULTS = {words.lower(): words for field in FIELDS for words in field.bad.values()}
_FIELDS = {
    "degraded bandwidth": ("bandwidth", _GOOD),
    "route recovery": ("route_recovery_in_progress", _GOOD),
    "route unhealthy": ("route_unhealthy", _GOOD),
    "access timeout recovery": ("access_timeout_recovery", _GOOD),
    "incorrect configuration": ("incorrect_configuration", _GOOD),
    "partition assigned": ("partition_assigned", _YES),
    "fabric manager": ("gfm_state", _YES),
}
"""Field of the health mask -> its tag below `health`, and what its words mean."""


def xml_fabric(node: XmlNode) -> dict[str, Any]:
    """Registration and health of one GPU.

    Before the state is *Completed*, `N/A` in the other fields means *not yet*, not *not supported*.
    """
    state = node.word("fabric.state", "fabric/state")
    done = state == "Completed"
    uuid = node.word("fabric.cluster_uuid", "fabric/clusterUuid") if done else None
    summary, mask = node.silent("fabric/health/summary"), _mask(node)
    if done and summary is None:
        node.unsupported("fabric.health_summary")
    if done and mask is None:
        node.unsupported("fabric.health_mask")
    return {
        "state": state,
        "status": node.word("fabric.status", "fabric/status") if done else None,
        "clique_id": node.number("fabric.clique_id", "fabric/cliqueId") if done else None,
        "cluster_uuid": uuid and uuid.lower(),
        "health_summary": summary,
        "health_mask": mask,
    }


def _mask(node: XmlNode) -> int | None:
    """The words as NVML's mask; None if the driver reports none of them."""
    values: dict[str, bool | str | None] = {}
    for field, (tag, meanings) in _FIELDS.items():
        word = node.silent(f"fabric/health/{tag}")  # unreported parts are normal
        if word is not None:
            values[field] = meanings.get(word.lower(), _FAULTS.get(word.lower(), word))
    return encode(values) if values else None
