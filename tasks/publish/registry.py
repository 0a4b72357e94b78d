"""What the registry is told of a draft, and whether it has heard it. Plain data; the tracker sends it.

The pointer files are the truth: they move by one rename and need nobody else. The aliases of the registry
follow them, now or at the next start; `registry.json` beside the pointers says what was confirmed last.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks.publish.models import Decision
from tasks.publish.records import VersionRecord, read_record
from tasks.publish.versions import CHAMPION, PREVIOUS, read_pointer
from tasks.tracking_queue import Operation

CONFIRMED = "registry.json"
_SMALL_FILES = ("manifest.json", "config.json", "serve.json", "README.md")


def register_operation(
    name: str,
    run_id: str,
    weights: str,
    folder: Path,
    decision: Decision,
    tags: dict[str, str],
    candidate: bool = True,
) -> Operation:
    """Registers a draft. A held one is a candidate with its reasons.

    Args:
        name: Name of the draft and of its registered model.
        folder: Where it lies; its weights are named, not copied.
        tags: Version and lineage.
        candidate: Whether it is one, if the registry has not heard of it yet.
    """
    words = {
        f"dspark.{word.kind}": f"{'yes' if word.yes else 'no'}, {word.by}: {word.why}"
        for word in decision.words
    }
    return {
        "op": "register",
        "key": run_id,
        "name": name,
        "draft": f"{run_id}:{weights[:16]}",
        "candidate": candidate,
        "files": [str(folder / file) for file in _SMALL_FILES],
        "tags": {
            "dspark.decision": "promoted" if decision.promote else "held",
            "dspark.reasons": "; ".join(decision.reasons),
            "dspark.incumbent": decision.incumbent or "none",
            "dspark.standing": decision.standing,
            "dspark.location": str(folder),
            **words,
            **tags,
        },
    }


def version_operation(place: Path, record: VersionRecord, candidate: bool = False) -> Operation:
    """Registers a published version from its record, now or much later."""
    tags = {"dspark.version": record.version, "dspark.captures": record.captures}
    tags |= {f"dspark.{name}": value for name, value in record.lineage.items()}
    tags |= {f"dspark.hub_{name}": value for name, value in (record.hub or {}).items()}
    return register_operation(
        record.name,
        record.run_id,
        record.weights,
        place / record.version,
        record.decision,
        tags,
        candidate,
    )


def aliases_operation(place: Path) -> Operation:
    """Lets the aliases follow the pointer files."""
    return {
        "op": "aliases",
        "name": place.name,
        "aliases": pointers(place),
        "confirm": str(place / CONFIRMED),
    }


def pointers(place: Path) -> dict[str, str | None]:
    """Champion and previous, as the files name them."""
    return {name: read_pointer(place, name) for name in (CHAMPION, PREVIOUS)}


def is_settled(place: Path) -> bool:
    """Whether the registry confirmed what the pointer files say now."""
    try:
        found: Any = json.loads((place / CONFIRMED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(found == pointers(place))


def settling_operations(place: Path) -> list[Operation]:
    """Everything that brings the registry to where the pointer files are; sent twice it changes nothing."""
    named = [version for version in pointers(place).values() if version is not None]
    records = [record for version in named if (record := read_record(place, version)) is not None]
    return [*(version_operation(place, record) for record in records), aliases_operation(place)]


def unsettled(published: Path) -> Iterator[Path]:
    """Drafts under a folder of published drafts whose registry has not confirmed their pointers."""
    for pointer in sorted(published.glob(f"*/{CHAMPION}")):
        place = pointer.parent
        recorded = all(read_record(place, version) for version in pointers(place).values() if version)
        if recorded and not is_settled(place):  # versions from before there were records stay unregistered
            yield place
