"""IMEX: channels of the node, and the domain as its daemon tells it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from tasks.validate.collect.findings import Findings
from tasks.validate.collect.programs import NotInstalled, Unanswered, ask
from tasks.validate.collect.request import ProbeRequest

CHANNELS = "/dev/nvidia-caps-imex-channels"
CONTROL = "nvidia-imex-ctl"
_STATE = re.compile(r"Domain State:\s*(\w+)", re.IGNORECASE)
_NODE = re.compile(r"Node\s*#\d+.*?-\s*(\w+)\s*-.*?Version:\s*([\d.]+)", re.IGNORECASE)


def imex_findings(request: ProbeRequest) -> Findings:
    """Channels and domain. No daemon is a fact, not an error: a node that runs alone needs none."""
    found = Findings()
    folder = request.path(CHANNELS)
    try:
        channels = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        found.put("imex", {"channels": channels}, CHANNELS)
    except OSError as error:
        found.errors["imex.channels"] = f"{CHANNELS}: {error.strerror}"
    try:
        answer = ask((CONTROL, "-N", "-j"), request.deadline_s / 2)
    except NotInstalled:
        return found
    except Unanswered as why:
        found.errors["imex.domain_state"] = f"{CONTROL}: {why}"
        return found
    domain = _domain(answer.output)
    if domain["domain_state"] is None:
        found.errors["imex.domain_state"] = f"{CONTROL}: {answer.why}"
    found.put("imex", domain, f"{CONTROL} -N -j")
    return found


def _domain(text: str) -> dict[str, Any]:
    """State, ready nodes and version, from the JSON or, of a version that ignores `-j`, from the table."""
    try:
        document = json.loads(text)
    except ValueError:
        return _table(text)
    if not isinstance(document, dict):
        return _table(text)
    nodes = [node for node in _dictionaries(document) if "version" in node and "status" in node]
    state = next(
        (document[key] for key in ("status", "domainState", "domain_state", "state") if key in document), None
    )
    versions = sorted({str(node["version"]) for node in nodes})
    return {
        "domain_state": str(state) if state is not None else None,
        "ready_nodes": sum(str(node["status"]).upper() == "READY" for node in nodes),
        "daemon_version": ", ".join(versions) or None,
    }


def _table(text: str) -> dict[str, Any]:
    state, nodes = _STATE.search(text), _NODE.findall(text)
    return {
        "domain_state": state.group(1) if state else None,
        "ready_nodes": sum(status.upper() == "READY" for status, _ in nodes) if nodes else None,
        "daemon_version": ", ".join(sorted({version for _, version in nodes})) or None,
    }


def _dictionaries(document: Any) -> Iterator[dict[str, Any]]:
    """Every object below the top one, whether nodes are a list or keyed by number."""
    children = (
        document.values() if isinstance(document, dict) else document if isinstance(document, list) else ()
    )
    for child in children:
        if isinstance(child, dict):
            yield child
        yield from _dictionaries(child)
