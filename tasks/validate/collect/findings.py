"""What one collector found: parts of `NodeFacts` as plain JSON, and how the parts of several are joined.

Only the standard library, because a collector is a process of its own and must start at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

_GPU_PATH = re.compile(r"^gpus\[(\d+)\]")


@dataclass
class Findings:
    """Parts of the facts of one node.

    Args:
        facts: As in `NodeFacts`; an absent key or None is *not observed*.
        sources: Group of facts -> where they were read.
        not_supported: Paths that were asked for and that the device does not offer.
        errors: Path or collector -> why it could not be read.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    not_supported: list[str] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)

    def put(self, group: str, values: Mapping[str, Any], source: str) -> None:
        """Add observed values of one group; without any, the group has no source."""
        seen = {name: value for name, value in values.items() if value is not None}
        if seen:
            self.facts.setdefault(group, {}).update(seen)
            self.sources[group] = _joined(self.sources.get(group, ""), source)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Findings:
        """Raises ValueError if the text is not what `to_json` wrote."""
        try:
            return cls(**json.loads(text))
        except TypeError as error:
            raise ValueError(f"not the findings of a collector: {error}") from error


def merge(first: Findings, second: Findings) -> Findings:
    """Join two collectors' findings; where both observed a fact, the first one's stands."""
    moved, gpus = _merge_gpus(first.facts.get("gpus"), second.facts.get("gpus"))
    facts = _filled(
        {name: value for name, value in first.facts.items() if name != "gpus"},
        {name: value for name, value in second.facts.items() if name != "gpus"},
    )
    if gpus is not None:
        facts["gpus"] = gpus
    pairs = _merge_listed(first.facts.get("gpu_peers"), second.facts.get("gpu_peers"), "from_gpu", "to_gpu")
    if pairs is not None:
        facts["gpu_peers"] = pairs
    sources = dict(first.sources)
    for group, source in second.sources.items():
        sources[group] = _joined(sources.get(group, ""), source)
    errors = {_moved(path, moved): why for path, why in second.errors.items()}
    unsupported = [*first.not_supported, *(_moved(path, moved) for path in second.not_supported)]
    return Findings(facts, sources, list(dict.fromkeys(unsupported)), {**errors, **first.errors})


def unobserved(facts: Mapping[str, Any], paths: list[str]) -> tuple[str, ...]:
    """Those paths whose fact nobody observed; one collector's *not supported* may be another one's value."""
    return tuple(sorted(path for path in paths if _value(facts, path) is None))


def _value(facts: Any, path: str) -> Any:
    gpu = _GPU_PATH.match(path)
    if gpu:
        wanted = int(gpu.group(1))
        facts = next((one for one in facts.get("gpus") or () if one["index"] == wanted), None)
        path = path[gpu.end() :].lstrip(".")
    for name in path.split("."):
        facts = facts.get(name) if isinstance(facts, Mapping) else None
    return facts


def _joined(old: str, new: str) -> str:
    return new if not old else old if new in old.split(", ") else f"{old}, {new}"


def _filled(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """`first`, with what it lacks taken from `second`, group by group."""
    result = dict(first)
    for name, value in second.items():
        mine = result.get(name)
        if isinstance(mine, dict) and isinstance(value, dict):
            result[name] = _filled(mine, value)
        elif mine is None:
            result[name] = value
    return result


def _merge_gpus(
    first: list[dict[str, Any]] | None, second: list[dict[str, Any]] | None
) -> tuple[dict[int, int], list[dict[str, Any]] | None]:
    """(index in `second` -> index in the result, the joined GPUs).

    GPUs are matched by bus address, then by UUID, then by index: `nvidia-smi -q -x` counts only those that
    answered, so that its positions differ from the driver's indices when one is lost.
    """
    if first is None or second is None:
        return {}, first if second is None else second
    result, moved = [dict(gpu) for gpu in first], {}
    for gpu in second:
        place = _match(result, gpu)
        if place is None:
            taken = {one["index"] for one in result}
            index = gpu["index"] if gpu["index"] not in taken else max(taken) + 1
            result.append({**gpu, "index": index})
            moved[gpu["index"]] = index
        else:
            mine = result[place]
            moved[gpu["index"]] = mine["index"]
            result[place] = _filled(mine, gpu)
            result[place]["nvlinks"] = _merge_listed(mine.get("nvlinks"), gpu.get("nvlinks"), "link")
    return moved, sorted(result, key=lambda one: one["index"])


def _merge_listed(
    first: list[dict[str, Any]] | None, second: list[dict[str, Any]] | None, *keys: str
) -> list[dict[str, Any]] | None:
    """Entries of two lists, matched by `keys`: a link's speed and its other end may come from two calls."""
    if not first or not second:
        return first or second if first or second else first if second is None else second
    entries = {tuple(entry[key] for key in keys): entry for entry in second}
    for entry in first:
        place = tuple(entry[key] for key in keys)
        entries[place] = _filled(entry, entries.get(place, {}))
    return [entries[place] for place in sorted(entries)]


def _match(gpus: list[dict[str, Any]], wanted: dict[str, Any]) -> int | None:
    for key in ("bus_id", "uuid", "index"):
        if wanted.get(key) is None:
            continue
        known = [gpu.get(key) for gpu in gpus]
        if wanted[key] in known:
            return known.index(wanted[key])
        if key != "index" and all(value is not None for value in known):
            return None
    return None


def _moved(path: str, indices: Mapping[int, int]) -> str:
    found = _GPU_PATH.match(path)
    if not found or int(found.group(1)) not in indices:
        return path
    return f"gpus[{indices[int(found.group(1))]}]{path[found.end() :]}"
