"""How numbers are written for people: units, rounding, intervals."""

from __future__ import annotations

MISSING = "-"


def duration(seconds: float | None) -> str:
    """`1 h 02 min`, `11 min 10 s` or `4.2 s`."""
    if seconds is None:
        return MISSING
    if seconds < 59.95:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def count(value: float | None) -> str:
    """Whole number with thin groups: `58,214`."""
    return MISSING if value is None else f"{value:,.0f}"


def size(value: float | None) -> str:
    """Bytes in the largest fitting binary unit: `767.5 MiB`."""
    if value is None:
        return MISSING
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("the loop returns at GiB")


def millions(value: float | None) -> str:
    """Parameters: `9.87 M`."""
    if value is None:
        return MISSING
    return f"{value / 1e6:.2f} M" if value >= 1e6 else count(value)


def tau(value: float | None) -> str:
    """Acceptance length with two decimals."""
    return MISSING if value is None else f"{value:.2f}"


def interval(low: float | None, high: float | None) -> str:
    """`[1.67, 1.76]`, or nothing where there is none."""
    return "" if low is None or high is None else f"[{low:.2f}, {high:.2f}]"


def percent(value: float | None, digits: int = 1) -> str:
    """Share as a percentage: `0.3 %`."""
    return MISSING if value is None else f"{100 * value:.{digits}f} %"
