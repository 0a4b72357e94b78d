"""What a checkpoint says about the configuration that made it, and the refusal of another one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from tasks.errors import StageInputError

_SHOWN = 3


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by dotted name."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def refuse_other(checkpoint: Path, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> NoReturn:
    """Say how the configuration of a checkpoint differs from the wanted one.

    Args:
        stored: Dotted name -> value, as JSON holds it.
        wanted: The same of the present configuration.

    Raises:
        StageInputError: Always, with both values of the first fields that differ.
    """
    names = [name for name in {**stored, **wanted} if stored.get(name) != wanted.get(name)]
    shown = [f"{name} is {stored.get(name)} there and {wanted.get(name)} here" for name in names[:_SHOWN]]
    more = f" and {len(names) - _SHOWN} more fields differ" if len(names) > _SHOWN else ""
    what = "; ".join(shown) + more if shown else "another version of the trainer wrote it"
    raise StageInputError(
        f"checkpoint {checkpoint.name} is of another configuration: {what}",
        where=str(checkpoint),
        hint="set these fields back to continue it, or begin anew: resume --from train, or an empty folder",
    )
