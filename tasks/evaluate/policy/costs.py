"""The verification cost table: how long an engine step takes by the number of tokens in its batch.

The step of a server without a draft verifies one token for each request. With a draft it verifies the draft
tokens too, and a block is drafted for each request: `verify(tokens) + draft(requests)`, as in vLLM's own
adaptive verification. Both curves come from load points; measurements are pooled so that a larger batch is
never faster, and joined by straight lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from tasks.evaluate.policy.models import CostTable, DraftCost, StepCost
from tasks.evaluate.policy.slots import Floats

PLAIN, DRAFT = "plain", "draft"


class _Percentiles(Protocol):
    @property
    def p50(self) -> float | None: ...


class LoadedPoint(Protocol):
    """What a cost needs of one load point (`tasks.evaluate.load.models.LoadPoint`)."""

    @property
    def arm(self) -> str: ...
    @property
    def concurrency(self) -> int: ...
    @property
    def request_rate(self) -> float | None: ...
    @property
    def usable(self) -> bool: ...
    @property
    def output_tokens_per_s(self) -> float: ...
    @property
    def tpot_ms(self) -> _Percentiles: ...
    @property
    def tau(self) -> float | None: ...
    @property
    def drafts(self) -> int | None: ...
    @property
    def draft_tokens(self) -> int | None: ...


class LoadedSweep(Protocol):
    """A sweep over the load (`tasks.evaluate.load.models.LoadSweep`)."""

    @property
    def points(self) -> Sequence[LoadedPoint]: ...
    @property
    def speed_is_meaningful(self) -> bool: ...


@dataclass(frozen=True)
class Drafted:
    """A measured step with a draft."""

    requests: int
    tokens: int
    """Tokens in the batch: requests and draft tokens."""
    steps_per_s: float


def cost_table(
    plain: Sequence[tuple[int, float]], drafted: Sequence[Drafted] = (), *, meaningful: bool = True
) -> CostTable | None:
    """Table from measured speeds.

    Args:
        plain: (tokens in the batch, steps per second) without a draft.
        drafted: The same with a draft; their time beyond `verify` is the draft's own.
        meaningful: False for Triton's interpreter.

    Returns:
        None if fewer than two different batches were measured without a draft: no curve.
    """
    known = [(tokens, 1 / speed) for tokens, speed in plain if tokens > 0 and speed > 0]
    if len({tokens for tokens, _ in known}) < 2:
        return None
    draft, notes = _draft_costs(known, drafted)
    largest = max(tokens for tokens, _ in known)
    for one in drafted:
        if one.tokens > largest and one.steps_per_s > 0:
            known.append((one.tokens, max(1 / one.steps_per_s - curve(draft, one.requests).item(), 1e-9)))
    if not meaningful:
        notes.append("costs were measured in Triton's interpreter: they and all that follows mean nothing")
    return CostTable(
        verify=tuple(
            StepCost(tokens=int(tokens), seconds=seconds, steps_per_s=1 / seconds)
            for tokens, seconds in never_falling(known)
        ),
        draft=tuple(DraftCost(requests=int(requests), seconds=seconds) for requests, seconds in draft),
        meaningful=meaningful,
        notes=tuple(notes),
    )


def _draft_costs(
    plain: Sequence[tuple[int, float]], drafted: Sequence[Drafted]
) -> tuple[list[tuple[float, float]], list[str]]:
    """(requests, seconds) of drafting: what such a step takes longer than a plain one of as many tokens."""
    known = sorted((one for one in drafted if one.steps_per_s > 0), key=lambda one: one.tokens)
    if not known:
        return [], ["no load point with a draft: the time of drafting counts as nothing"]
    verify = never_falling(plain)
    inside = [one for one in known if one.tokens <= verify[-1][0]]
    notes = []
    if not inside:
        inside = known[:1]
        notes.append(
            f"the time of drafting is estimated: a step of {inside[0].tokens} tokens without a draft was not "
            f"measured, only up to {verify[-1][0]:g}"
        )
    points = [
        (one.requests, max(1 / one.steps_per_s - curve(verify, one.tokens).item(), 0.0)) for one in inside
    ]
    return never_falling(points), notes


def curve(points: Sequence[tuple[float, float]], at: ArrayLike) -> Floats:
    """Value at `at` on straight lines through `points`; 0 without points.

    Below the first point its value, beyond the last the slope of the last two, or their value if it is one.
    """
    where = np.asarray(at, dtype=np.float64)
    if not points:
        return np.zeros_like(where)
    x, y = np.array(points, dtype=np.float64).T
    value: Floats = np.asarray(np.interp(where, x, y))
    if len(x) > 1:
        slope = (y[-1] - y[-2]) / (x[-1] - x[-2])
        value = np.where(where > x[-1], y[-1] + slope * (where - x[-1]), value)
    return value


def never_falling(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points of one place averaged, then neighbours that fall pooled to their mean (isotonic regression)."""
    by_place: dict[float, list[float]] = {}
    for place, value in points:
        by_place.setdefault(float(place), []).append(value)
    blocks: list[tuple[list[float], float]] = []
    for place in sorted(by_place):
        places, value = [place], sum(by_place[place]) / len(by_place[place])
        while blocks and blocks[-1][1] > value:
            earlier, before = blocks.pop()
            value = (before * len(earlier) + value * len(places)) / (len(earlier) + len(places))
            places = earlier + places
        blocks.append((places, value))
    return [(place, value) for places, value in blocks for place in places]


def step_seconds(table: CostTable, tokens: ArrayLike, drafting: int = 0) -> Floats:
    """Time of steps with `tokens` in the batch, plus drafting for `drafting` requests."""
    verify = curve([(one.tokens, one.seconds) for one in table.verify], tokens)
    draft = curve([(one.requests, one.seconds) for one in table.draft], drafting) if drafting else 0.0
    return np.asarray(verify + draft)


def is_measured(table: CostTable, tokens: int) -> bool:
    """Whether a batch of `tokens` lies between measured ones."""
    low, high = table.measured_tokens
    return low <= tokens <= high


def sweep_costs(sweep: LoadedSweep | None) -> tuple[CostTable | None, list[str]]:
    """Cost table of a sweep over the load, and why points or the whole are missing.

    A step's time is the median time per token after the first, times the tokens that a round emits; the time
    to the first token is not in it. Points of a rate sweep have no fixed batch and are left out.
    """
    if sweep is None:
        return None, ["no load was measured: there is no cost table, and no speed can be predicted"]
    plain, drafted, unusable = [], [], 0
    for point in sweep.points:
        if point.request_rate is not None or point.arm not in (PLAIN, DRAFT):
            continue
        speed = _steps_per_s(point)
        if not speed:
            unusable += 1
        elif point.arm == PLAIN:
            plain.append((point.concurrency, speed))
        elif point.drafts and point.draft_tokens:
            tokens = point.concurrency * (1 + point.draft_tokens / point.drafts)
            drafted.append(Drafted(point.concurrency, round(tokens), speed))
    table = cost_table(plain, drafted, meaningful=sweep.speed_is_meaningful)
    notes = [f"cost table: {unusable} load points could not be used"] if unusable else []
    if table is None:
        notes.append(
            f"no cost table: it needs two concurrencies of the arm '{PLAIN}', {len(plain)} were measured"
        )
    return table, notes


def _steps_per_s(point: LoadedPoint) -> float:
    """Engine steps per second at a load point; 0 if that was not measured."""
    per_step = 1.0 if point.arm == PLAIN else point.tau
    if not point.usable or per_step is None:
        return 0.0
    if point.tpot_ms.p50:
        return 1000 / (point.tpot_ms.p50 * per_step)
    return point.output_tokens_per_s / (point.concurrency * per_step)
