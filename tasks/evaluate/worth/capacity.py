"""What one server of each arm gives at the targets of the profile, and the GPUs that a stated load needs."""

from __future__ import annotations

import math

from profiles.evaluation import Slo
from tasks.evaluate.worth.models import Basis, Capacity, FrontPoint, Objective
from tasks.evaluate.worth.objectives import LATENCIES, asked
from tasks.evaluate.worth.pareto import concurrency_at, front, throughput_at
from tasks.evaluate.worth.points import DRAFT, PLAIN, Cells, along


def capacities(
    cells: Cells, found: tuple[Objective, ...], slo: Slo, gpus_per_server: int | None
) -> tuple[Capacity, ...]:
    """Plain and draft side by side; empty without a load sweep."""
    if not cells:
        return ()
    return tuple(capacity(cells, arm, found, slo, gpus_per_server) for arm in (PLAIN, DRAFT))


def capacity(
    cells: Cells, arm: str, found: tuple[Objective, ...], slo: Slo, gpus_per_server: int | None
) -> Capacity:
    """Largest throughput of one server that meets the targets, and servers for the stated load.

    Where tokens/s/user is the only target, the place on the Pareto front is interpolated; other targets
    hold only where they were measured. Servers are assumed to add up, which is an extrapolation.
    """
    best = _best(cells, arm, found, slo)
    if best is None:
        return Capacity(
            arm=arm, tokens_per_s_per_server=None, tokens_per_s_per_gpu=None, concurrency=None,
            gpus_needed=None, basis="measured", gpus_basis="measured", why_not=_why_not(cells, arm),
        )  # fmt: skip
    rate, concurrency, basis = best
    # A mean of logarithms may be a rounding error low, and that must not cost a server.
    servers = math.ceil(slo.load_tokens_per_s / rate - 1e-9) if slo.load_tokens_per_s else None
    return Capacity(
        arm=arm,
        tokens_per_s_per_server=rate,
        tokens_per_s_per_gpu=rate / gpus_per_server if gpus_per_server else None,
        concurrency=concurrency,
        gpus_needed=servers * gpus_per_server if servers and gpus_per_server else None,
        basis=basis,
        gpus_basis=basis if servers == 1 else "extrapolated",
        why_not="" if gpus_per_server else _no_gpus(gpus_per_server),
    )


def _best(
    cells: Cells, arm: str, found: tuple[Objective, ...], slo: Slo
) -> tuple[float, float, Basis] | None:
    """(tokens/s, requests in flight, basis) of the best operating point that meets the targets."""
    if _only_per_user(slo) and slo.tokens_per_s_per_user is not None:
        points = front(cells, arm)
        there = throughput_at(points, slo.tokens_per_s_per_user)
        concurrency = concurrency_at(points, slo.tokens_per_s_per_user)
        if there is not None and concurrency is not None:
            return there[0], concurrency, there[1]
        return _most([p for p in points if p.tokens_per_s_per_user >= slo.tokens_per_s_per_user])
    met = {one.concurrency for one in found if one.arm == arm and one.met}
    own = [cell for cell in along(cells, arm) if not asked(slo) or cell.concurrency in met]
    if not own:
        return None
    best = max(own, key=lambda cell: cell.tokens_per_s)
    return best.tokens_per_s, float(best.concurrency), "measured"


def _most(points: list[FrontPoint]) -> tuple[float, float, Basis] | None:
    """The highest throughput of points that all see more than the target."""
    if not points:
        return None
    best = max(points, key=lambda point: point.tokens_per_s)
    return best.tokens_per_s, float(best.concurrency), "measured"


def _only_per_user(slo: Slo) -> bool:
    return slo.tokens_per_s_per_user is not None and all(getattr(slo, name) is None for name in LATENCIES)


def _why_not(cells: Cells, arm: str) -> str:
    return "no measured point meets the targets" if along(cells, arm) else "no usable point was measured"


def _no_gpus(gpus: int | None) -> str:
    return (
        "this machine has no GPU"
        if gpus == 0
        else "the GPUs of the server are not known; set evaluate.prices.gpus_per_server"
    )
