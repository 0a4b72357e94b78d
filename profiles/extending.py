"""`extends: NAME|FILE`: a profile that says only what differs from another one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from profiles.problem import ProfileProblem
from profiles.text import Source

EXTENDS = "extends"


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `over` on top: mappings are merged key by key, everything else is replaced."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[key] = merge(old, value) if both else value  # type: ignore[arg-type]
    return merged


def extended(source: Source, read: Callable[[str, Source], Source], below: tuple[str, ...] = ()) -> Source:
    """The values of a profile with those of the one that it extends underneath, and so on.

    `null` empties what the other one says; lists replace each other, mappings are merged. Each value keeps
    the file and line that it stands in.

    Args:
        read: Reads the profile that another one names.
        below: Places of the profiles that led here.

    Raises:
        ProfileProblem: The name is no text, nothing is there, or profiles extend each other in a circle.
    """
    if EXTENDS not in source.values:
        return source
    own = dict(source.values)
    name = own.pop(EXTENDS)
    where = source.lines.get(EXTENDS, source.name)
    if not isinstance(name, str) or not name:
        raise ProfileProblem(
            f"{EXTENDS}: {name!r} names no profile",
            where=where,
            hint="give the name or the file of one profile",
        )
    chain = (*below, source.place)
    base = read(name, source)
    if base.place in chain:
        circle = " -> ".join((*chain, base.place))
        raise ProfileProblem(
            f"profiles extend each other in a circle: {circle}", where=where, hint="take one `extends` out"
        )
    base = extended(base, read, chain)
    return Source(source.name, merge(base.values, own), {**base.lines, **source.lines}, source.place)
