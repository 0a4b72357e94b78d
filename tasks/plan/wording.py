"""Bytes, hours and seconds in words, as plans and their risks say them."""

from __future__ import annotations


def size_text(size_bytes: float) -> str:
    """Bytes in the unit that keeps the number short; decimal units, as disks are sold."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:,.1f} {unit}"
    return f"{size_bytes:,.0f} B"


def span_text(seconds: float | None) -> str:
    """Seconds as `41 s`, `7.2 min` or `5.3 h`; a question mark where they are not known."""
    if seconds is None:
        return "?"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:,.1f} h"


def number_text(value: float | None, unit: str = "", digits: int = 2) -> str:
    """A number with its unit; a question mark where it is not known."""
    return "?" if value is None else f"{value:,.{digits}f} {unit}".rstrip()
