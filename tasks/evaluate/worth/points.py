"""Which points of a sweep may be used: valid ones of equal conditions. Others are listed with the reason."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tasks.evaluate.load.models import LoadPoint
from tasks.evaluate.worth.models import LeftOut

PLAIN = "plain"
PLAIN_AGAIN = "plain-again"
DRAFT = "draft"


@dataclass(frozen=True)
class Cell:
    """All usable points of one arm at one concurrency: repetitions of one measurement."""

    arm: str
    concurrency: int
    points: tuple[LoadPoint, ...]

    @property
    def logs(self) -> tuple[float, ...]:
        """Natural logarithms of the output tokens per second; speeds vary by factors, not by amounts."""
        return tuple(math.log(point.output_tokens_per_s) for point in self.points)

    @property
    def tokens_per_s(self) -> float:
        """Geometric mean of the repetitions."""
        if len(self.points) == 1:
            return self.points[0].output_tokens_per_s
        return math.exp(sum(self.logs) / len(self.logs))

    @property
    def tokens_per_s_per_user(self) -> float | None:
        known = [p.tokens_per_s_per_user for p in self.points if p.tokens_per_s_per_user is not None]
        return sum(known) / len(known) if known else None


Cells = dict[tuple[str, int], Cell]


def usable(
    points: Sequence[LoadPoint], differences: Mapping[str, Sequence[str]]
) -> tuple[Cells, tuple[LeftOut, ...]]:
    """Group what may be used by arm and concurrency, and list what may not.

    A second plain arm (A/A) is a repetition of the first. Points of a rate sweep are no part of it: their
    concurrency is a result, not a setting.

    Args:
        differences: Arm -> conditions that differ from the plain arm's; such an arm is not compared.
    """
    grouped: dict[tuple[str, int], list[LoadPoint]] = {}
    left_out = []
    for point in points:
        reason = fault(point, differences)
        if reason:
            left_out.append(LeftOut(arm=point.arm, concurrency=point.concurrency, reason=reason))
        elif point.request_rate is None:
            arm = PLAIN if point.arm == PLAIN_AGAIN else point.arm
            grouped.setdefault((arm, point.concurrency), []).append(point)
    cells = {key: Cell(*key, tuple(grouped[key])) for key in sorted(grouped)}
    return cells, tuple(left_out)


def fault(point: LoadPoint, differences: Mapping[str, Sequence[str]]) -> str:
    """Why a point may not be used; empty if it may."""
    other = differences.get(point.arm, ())
    if other:
        return "measured under other conditions: " + "; ".join(other)
    if point.invalid:
        return f"invalid: {point.invalid}"
    if point.timed_out:
        return f"timed out after {point.seconds:.0f} s"
    if point.requests <= point.failed:
        return f"{point.failed} of {point.requests} requests failed"
    if not point.output_tokens_per_s > 0:
        return "no output token was produced"
    if point.arm == DRAFT and not point.draft_tokens:
        return "no drafts were observed"
    return ""


def arms_of(cells: Cells) -> list[str]:
    """Arms with usable points: the draft, plain, then the others by name."""
    names = {arm for arm, _ in cells}
    first = [name for name in (DRAFT, PLAIN) if name in names]
    return first + sorted(names - set(first))


def along(cells: Cells, arm: str) -> list[Cell]:
    """The cells of one arm by rising concurrency."""
    return [cell for (name, _), cell in sorted(cells.items()) if name == arm]
