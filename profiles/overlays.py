"""Built-in overlays: values laid over a profile for a purpose, such as `full`, which measures everything."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

from profiles.text import parse_source

FULL = "full"


def overlay_values(purpose: str, profile: str) -> dict[str, Any]:
    """Nested values of an overlay: those for this profile (`<profile>-<purpose>.yaml`), else for any.

    Args:
        profile: Name of the profile that they will be laid over.
    """
    folder = Path(str(resources.files("profiles"))) / "overlays"
    own = folder / f"{profile}-{purpose}.yaml"
    file = own if own.is_file() else folder / f"{purpose}.yaml"
    return parse_source(file.read_text(encoding="utf-8"), file.name).values
