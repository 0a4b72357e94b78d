"""Versions of both sides of the store, compared before the first sample is read.

The writer puts its own into the metadata of every transfer manifest. They travel in the server's answer,
so the reader knows them before it touches the store, also at a server that was started by others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tasks.errors import UsageError

FORMAT = 2
"""Version of what we add to upstream's format: seal, error marker, metadata."""
_MOONCAKE = (
    "mooncake-transfer-engine",
    "mooncake-transfer-engine-cuda13",
    "mooncake-transfer-engine-non-cuda",
)
_NAMES = {"format": "retrain-dspark's format", "hs_connectors": "hs-connectors", "mooncake": "Mooncake"}


@cache
def own_versions() -> Mapping[str, str]:
    """Versions of this process: our format, hs-connectors, Mooncake. `none` is what is not installed."""
    return {
        "format": str(FORMAT),
        "hs_connectors": _installed("hs-connectors"),
        "mooncake": _installed(*_MOONCAKE),
    }


def _installed(*names: str) -> str:
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "none"


def announce_versions(manifest: dict[str, Any]) -> None:
    """Write this process's versions into a transfer manifest."""
    manifest["metadata"]["versions"] = dict(own_versions())


def require_same_versions(manifest: Mapping[str, Any], server: str) -> None:
    """Compare the writer's versions in a transfer manifest with those of this process, the reader.

    Builds of Mooncake differ between machines with and without CUDA, so its release counts
    (0.3.13 of `0.3.13.post1`); the others must be equal.

    Args:
        server: URL of the server that answered.

    Raises:
        UsageError: They differ, or the server runs another connector; both versions are named.
    """
    metadata = manifest.get("metadata")
    told = metadata.get("versions") if isinstance(metadata, Mapping) else None
    if not isinstance(told, Mapping):
        raise UsageError(
            "the server extracts hidden states with another connector than tasks.stream.connector",
            where=server,
            hint="start it with this project's connector, of the same release as this installation",
        )
    own = own_versions()
    differences = [
        f"{_NAMES[name]} {told.get(name, 'none')} on the server, {ours} here"
        for name, ours in own.items()
        if _comparable(name, str(told.get(name, "none"))) != _comparable(name, ours)
    ]
    if differences:
        raise UsageError(
            f"server and trainer cannot exchange hidden states: {'; '.join(differences)}",
            where=server,
            hint="install the same versions on both (constraints/ has them), then start the server again",
        )


def _comparable(name: str, version: str) -> str:
    found = re.match(r"\d+(\.\d+)*", version) if name == "mooncake" else None
    return found.group() if found else version
