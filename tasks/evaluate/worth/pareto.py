"""Throughput at matched interactivity: Pareto fronts of both arms, interpolated and never extrapolated."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tasks.evaluate.worth.models import Basis, FrontPoint, Matched
from tasks.evaluate.worth.points import Cells, along


def front(cells: Cells, arm: str) -> tuple[FrontPoint, ...]:
    """Points of an arm that no other point of it beats in both figures, by rising tokens/s/user."""
    points = [
        FrontPoint(
            concurrency=cell.concurrency,
            tokens_per_s_per_user=cell.tokens_per_s_per_user,
            tokens_per_s=cell.tokens_per_s,
        )
        for cell in along(cells, arm)
        if cell.tokens_per_s_per_user is not None
    ]
    best: list[FrontPoint] = []
    for point in sorted(points, key=lambda p: (-p.tokens_per_s_per_user, -p.tokens_per_s)):
        if not best or point.tokens_per_s > best[-1].tokens_per_s:
            best.append(point)
    return tuple(reversed(best))


def throughput_at(points: Sequence[FrontPoint], per_user: float) -> tuple[float, Basis] | None:
    """Output tokens/s of an arm where a user sees `per_user` tokens/s; None outside of what was measured."""
    for point in points:
        if point.tokens_per_s_per_user == per_user:
            return point.tokens_per_s, "measured"
    for left, right in itertools.pairwise(points):
        if left.tokens_per_s_per_user < per_user < right.tokens_per_s_per_user:
            share = _share(left, right, per_user)
            return left.tokens_per_s + share * (right.tokens_per_s - left.tokens_per_s), "interpolated"
    return None


def concurrency_at(points: Sequence[FrontPoint], per_user: float) -> float | None:
    """Requests in flight at the same place of the front."""
    for point in points:
        if point.tokens_per_s_per_user == per_user:
            return float(point.concurrency)
    for left, right in itertools.pairwise(points):
        if left.tokens_per_s_per_user < per_user < right.tokens_per_s_per_user:
            return left.concurrency + _share(left, right, per_user) * (right.concurrency - left.concurrency)
    return None


def _share(left: FrontPoint, right: FrontPoint, per_user: float) -> float:
    return (per_user - left.tokens_per_s_per_user) / (
        right.tokens_per_s_per_user - left.tokens_per_s_per_user
    )


def matched(
    plain: Sequence[FrontPoint], draft: Sequence[FrontPoint], wanted: float | None = None
) -> tuple[Matched, ...]:
    """Both arms at equal tokens/s/user: at every point of either front that the other reaches too.

    Args:
        wanted: Another tokens/s/user to compare at, such as the target of the profile.
    """
    places = {point.tokens_per_s_per_user for point in (*plain, *draft)}
    places |= {wanted} if wanted is not None else set()
    found = []
    for per_user in sorted(places):
        left, right = throughput_at(plain, per_user), throughput_at(draft, per_user)
        if left is None or right is None:
            continue
        basis: Basis = "measured" if left[1] == right[1] == "measured" else "interpolated"
        found.append(
            Matched(
                tokens_per_s_per_user=per_user,
                plain_tokens_per_s=left[0],
                draft_tokens_per_s=right[0],
                ratio=right[0] / left[0],
                basis=basis,
            )
        )
    return tuple(found)
