"""Findings of collectors as `NodeFacts`."""

from __future__ import annotations

import copy
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from tasks.validate.collect.findings import Findings
from tasks.validate.collect.request import ProbeRequest
from tasks.validate.facts import Collector, NodeFacts


def node_facts(request: ProbeRequest, found: Findings, more: Mapping[str, Any] = {}) -> NodeFacts:
    """The record of one node. A value that no record can hold is left out, with its reason.

    Args:
        more: Further fields of `NodeFacts`; groups are joined with what the collectors found.
    """
    facts = copy.deepcopy(found.facts)
    for name, value in more.items():
        known = facts.get(name)
        facts[name] = {**value, **known} if isinstance(known, dict) and isinstance(value, Mapping) else value
    document = {
        **facts,
        "node_id": request.node_id or platform.node(),
        "role": request.role,
        "collected_at": datetime.now(UTC).replace(microsecond=0),
        "collector": _collector(found),
        "sources": found.sources,
        "not_supported": found.not_supported,
        "errors": dict(found.errors),
    }
    while True:
        try:
            return NodeFacts.model_validate(document)
        except ValidationError as error:
            problem = error.errors()[0]
            document["errors"][_path(problem["loc"])] = f"unusable value: {problem['msg']}"
            _drop(document, problem["loc"])


def _collector(found: Findings) -> Collector:
    """The best of those that enumerated GPUs."""
    source = found.sources.get("gpus", "")
    return "nvml" if "nvml" in source else "nvidia_smi" if "nvidia-smi" in source else "sysfs"


def _path(place: tuple[int | str, ...]) -> str:
    words = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return words.lstrip(".")


def _drop(document: dict[str, Any], place: tuple[int | str, ...]) -> None:
    """Remove the value at `place`; where it is missing, the innermost part around it that is there.

    Raises:
        KeyError: Nothing of it is there: a field that every record needs.
    """
    holders: list[Any] = [document]
    for part in place[:-1]:
        try:
            holders.append(holders[-1][part])
        except (KeyError, IndexError, TypeError):
            break
    for holder, part in reversed(list(zip(holders, place, strict=False))):
        if part in (
            holder if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else ()
        ):
            del holder[part]
            return
    raise KeyError(_path(place))
