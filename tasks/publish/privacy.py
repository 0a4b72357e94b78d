"""What may stand in a published file: names instead of paths, settings that name no machine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from profiles.schema import Profile
from tasks.redaction import looks_secret

_PATH = re.compile(
    r"(?:^|[\s\"'=(:,])(?:~?/[^\s/]+/|file://|[A-Za-z]:\\|/(?:home|root|tmp|mnt|work|data|var)\b)"
)
_PRIVATE_KEYS = re.compile(r"(path|dir|folder|file|env|key|secret|url|uri|host|argv|command)s?$", re.I)


def target_name(profile: Profile) -> str:
    """Name of the target for others: what the card says, a hub name, or the last part of a local folder."""
    if profile.publish.card.base_model:
        return profile.publish.card.base_model
    model = profile.target.model.rstrip("/")
    is_folder = model.startswith(("/", ".", "~")) or model.count("/") > 1 or Path(model).expanduser().is_dir()
    return Path(model).name if is_folder else model


def revision_of(config: Mapping[str, Any]) -> str:
    """Revision of the target that a published configuration names; empty if none."""
    verifier = (config.get("speculators_config") or {}).get("verifier") or {}
    return str(verifier.get("revision") or "")


def public_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers, words and switches of a nested configuration; whatever could name this machine is left out."""
    kept: dict[str, Any] = {}
    for name, value in values.items():
        if _PRIVATE_KEYS.search(str(name)) or looks_secret(str(name)):
            continue
        if isinstance(value, Mapping):
            if inner := public_values(value):
                kept[str(name)] = inner
        elif _is_public(value):
            kept[str(name)] = value
    return kept


def _is_public(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= 120 and not _PATH.search(value) and "\n" not in value
    if isinstance(value, list | tuple):
        return all(_is_public(item) for item in value)
    return value is None or isinstance(value, bool | int | float)
