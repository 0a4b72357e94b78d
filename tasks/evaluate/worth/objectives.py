"""Measured points against the latency targets of the profile."""

from __future__ import annotations

from collections.abc import Iterator

from profiles.evaluation import Slo
from tasks.evaluate.load.models import LoadPoint
from tasks.evaluate.worth.models import Objective
from tasks.evaluate.worth.points import Cell, Cells, arms_of

LATENCIES = {
    f"{figure}_{percentile}_ms": (figure, percentile)
    for figure in ("ttft", "itl")
    for percentile in ("p50", "p90", "p99")
}
"""Field of the profile -> figure and percentile of a point."""


def asked(slo: Slo) -> bool:
    """Whether the profile sets any target of latency or of tokens/s/user."""
    return slo.tokens_per_s_per_user is not None or any(getattr(slo, name) is not None for name in LATENCIES)


def objectives(cells: Cells, slo: Slo) -> tuple[Objective, ...]:
    """Every arm and concurrency against the targets; empty where the profile sets none."""
    if not asked(slo):
        return ()
    return tuple(
        held_against(cell, slo) for arm in arms_of(cells) for (name, _), cell in cells.items() if name == arm
    )


def held_against(cell: Cell, slo: Slo) -> Objective:
    """One cell: every repetition must meet every target; a figure that was not measured leaves it open."""
    misses: dict[str, None] = {}
    unknown = False
    for point in cell.points:
        for name, found, limit, at_most in _figures(point, slo):
            if found is None:
                unknown = True
                misses[f"{name}: not measured"] = None
            elif found > limit if at_most else found < limit:
                misses[f"{name} {found:.4g} {'>' if at_most else '<'} {limit:.4g}"] = None
    failed = any("not measured" not in miss for miss in misses)
    return Objective(
        arm=cell.arm,
        concurrency=cell.concurrency,
        met=False if failed else None if unknown else True,
        misses=tuple(misses),
    )


def _figures(point: LoadPoint, slo: Slo) -> Iterator[tuple[str, float | None, float, bool]]:
    """(name with unit, measured, limit, whether it is an upper limit) of every target that is set."""
    for field, (figure, percentile) in LATENCIES.items():
        limit = getattr(slo, field)
        if limit is not None:
            found = getattr(getattr(point, f"{figure}_ms"), percentile)
            yield f"{figure.upper()} {percentile}, ms,", found, limit, True
    if slo.tokens_per_s_per_user is not None:
        yield "tokens/s/user", point.tokens_per_s_per_user, slo.tokens_per_s_per_user, False


def highest_met(found: tuple[Objective, ...], arm: str) -> int | None:
    """Highest concurrency up to which, from the lowest on, every point of `arm` meets the targets."""
    highest = None
    for one in sorted((o for o in found if o.arm == arm), key=lambda o: o.concurrency):
        if not one.met:
            break
        highest = one.concurrency
    return highest
