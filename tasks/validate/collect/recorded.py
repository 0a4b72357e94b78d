"""Facts as JSON: written with salted identifiers, read back without trusting them.

A file holds one record, or a list of records. A file that cannot be used becomes a record without facts whose
`errors` say why, so that checks fail with *not observed* and nothing ends in a traceback.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tasks.validate.collect.salting import Salt
from tasks.validate.facts import SCHEMA_VERSION, NodeFacts

_SHOWN = 3


def to_text(nodes: Sequence[NodeFacts], salt: Salt) -> str:
    """Records with identifiers salted: one object for one node, else a list.

    Args:
        salt: One for all files that belong together, so that what nodes share stays shared.
    """
    documents = [salt.facts(node.model_dump(mode="json")) for node in nodes]
    return json.dumps(documents[0] if len(documents) == 1 else documents, indent=2) + "\n"


def read(path: Path) -> tuple[NodeFacts, ...]:
    """Records of a file; one without facts if the file cannot be used."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return (_unusable(path.stem, f"{path.name} cannot be read: {error}"),)
    nodes = from_text(text, path.stem)
    return tuple(node.model_copy(update={"collector": "recorded"}) for node in nodes)


def from_text(text: str, node_id: str) -> tuple[NodeFacts, ...]:
    """Records of a JSON text.

    Args:
        node_id: Name of the node whose record cannot be used.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        return (
            _unusable(node_id, f"no complete JSON ({error}): the text was cut or is not a record of facts"),
        )
    documents = document if isinstance(document, list) else [document]
    if not documents:
        return (_unusable(node_id, "the list of records is empty"),)
    return tuple(_record(one, node_id) for one in documents)


def _record(document: Any, node_id: str) -> NodeFacts:
    if not isinstance(document, dict):
        return _unusable(node_id, f"a record is an object, not {type(document).__name__}")
    name = document.get("node_id")
    node_id = name if isinstance(name, str) and name else node_id
    version = document.get("schema_version", "none")
    if version != SCHEMA_VERSION:
        return _unusable(
            node_id,
            f"schema_version is {version}, this program reads {SCHEMA_VERSION}: record the facts anew",
        )
    try:
        return NodeFacts.model_validate(document)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:_SHOWN]]
        more = error.error_count() - len(problems)
        problems += [f"and {more} more"] if more > 0 else []
        return _unusable(node_id, "not a record of facts: " + "; ".join(problems))


def _unusable(node_id: str, why: str) -> NodeFacts:
    return NodeFacts(
        node_id=node_id or "unnamed",
        role="serve+train",
        collected_at=datetime.now(UTC).replace(microsecond=0),
        collector="recorded",
        errors={"recorded": why},
    )
