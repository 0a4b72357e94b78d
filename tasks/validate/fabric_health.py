"""NVML's fabric health mask: fields of two bits (0 not reported, 1 yes, 2 no) and one of four.

Read as one bit per fault it seems broken where it is healthy: 0x1aa says four times *no fault*, and
*no wrong configuration*.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

State = Literal["not reported", "good", "bad", "unknown"]


@dataclass(frozen=True)
class Field:
    """Place of one field, and what its values mean; values that are not listed are unknown."""

    name: str
    shift: int
    width_mask: int
    good: int
    bad: Mapping[int, str]


FIELDS = (
    Field("degraded bandwidth", 0, 0x3, 2, {1: "degraded bandwidth"}),
    Field("route recovery", 2, 0x3, 2, {1: "route recovery in progress"}),
    Field("route unhealthy", 4, 0x3, 2, {1: "route unhealthy"}),
    Field("access timeout recovery", 6, 0x3, 2, {1: "access timeout recovery"}),
    Field(
        "incorrect configuration",
        8,
        0xF,
        1,
        {
            2: "incorrect system GUID",
            3: "incorrect chassis serial number",
            4: "no partition",
            5: "insufficient NVLinks",
            6: "incompatible GPU firmware",
            7: "invalid location",
            8: "invalid GPU state",
        },
    ),
    Field("partition assigned", 12, 0x3, 1, {2: "no partition assigned"}),
    Field("fabric manager", 14, 0x3, 1, {2: "fabric manager disconnected"}),
)


def decode(mask: int) -> dict[str, tuple[State, str]]:
    """Field -> (state, words) of a mask; never raises, bits above the known fields are ignored."""
    found: dict[str, tuple[State, str]] = {}
    for field in FIELDS:
        value = (mask >> field.shift) & field.width_mask
        if value == 0:
            found[field.name] = ("not reported", "")
        elif value == field.good:
            found[field.name] = ("good", "")
        elif value in field.bad:
            found[field.name] = ("bad", field.bad[value])
        else:
            found[field.name] = ("unknown", f"{field.name}: unknown value {value}")
    return found


def problems(mask: int) -> list[str]:
    """Faults that a mask reports, in words; a value that nobody documents counts as one."""
    return [words for state, words in decode(mask).values() if state in ("bad", "unknown")]


def reports_nothing(mask: int) -> bool:
    """True if no field is reported: an older driver."""
    return all(state == "not reported" for state, _ in decode(mask).values())


def encode(values: Mapping[str, bool | str | None]) -> int:
    """The mask that a collector of words builds.

    Args:
        values: Field name (as in `FIELDS`) -> True for good, False for bad, None for not reported, or the
            words of one of the field's faults.
    """
    mask = 0
    for field in FIELDS:
        value = values.get(field.name)
        if value is None:
            continue
        codes = {words: code for code, words in field.bad.items()}
        number = field.good if value is True else codes.get(str(value), min(field.bad))
        mask |= number << field.shift
    return mask
