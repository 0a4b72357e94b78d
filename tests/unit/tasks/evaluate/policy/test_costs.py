"""The cost table from load points, and what it says where nothing was measured."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.evaluate.policy.costs import (
    Drafted,
    cost_table,
    curve,
    is_measured,
    never_falling,
    step_seconds,
    sweep_costs,
)


@dataclass(frozen=True)
class Percentiles:
    p50: float | None = None


@dataclass(frozen=True)
class Point:
    """The fields of a load point that a cost needs."""

    arm: str
    concurrency: int
    output_tokens_per_s: float
    tau: float | None = None
    drafts: int | None = None
    draft_tokens: int | None = None
    request_rate: float | None = None
    usable: bool = True
    tpot_ms: Percentiles = Percentiles()


@dataclass(frozen=True)
class Sweep:
    points: tuple[Point, ...]
    speed_is_meaningful: bool = True


def verify_s(tokens: float) -> float:
    """A machine that waits for memory up to 16 tokens, and computes beyond."""
    return 0.010 + max(0.0, tokens - 16) * 0.001


def sweep(draft_s: float, drafted: tuple[int, ...] = (1, 2, 4, 8), tokens: int = 4) -> Sweep:
    """Measured exactly, with `tokens` draft tokens of which 1.5 are emitted per round."""
    plain = [Point("plain", c, c / verify_s(c)) for c in (1, 2, 4, 8, 16, 32)]
    speeds = {c: 1 / (verify_s(c * (1 + tokens)) + draft_s) for c in drafted}
    points = [Point("draft", c, c * 1.5 * s, 1.5, 100, 100 * tokens) for c, s in speeds.items()]
    return Sweep((*plain, *points))


def test_a_sweep_gives_verification_and_drafting_apart() -> None:
    table, notes = sweep_costs(sweep(draft_s=0.003))
    assert table is not None and notes == [] and table.notes == ()
    for tokens in (1, 8, 16, 40):
        assert step_seconds(table, tokens).item() == pytest.approx(verify_s(tokens))
    assert step_seconds(table, 20, drafting=4).item() == pytest.approx(verify_s(20) + 0.003, rel=0.05)
    assert table.measured_tokens == (1, 40)
    assert table.verify[0].steps_per_s == pytest.approx(100)


def test_speeds_per_user_go_before_throughput() -> None:
    """The time to the first token is in the throughput, not in the time per token."""
    points = (
        Point("plain", 1, 10.0, tpot_ms=Percentiles(10.0)),
        Point("plain", 8, 80.0, tpot_ms=Percentiles(12.0)),
        Point("draft", 1, 15.0, 1.5, 10, 40, tpot_ms=Percentiles(9.0)),
    )
    table, _ = sweep_costs(Sweep(points))
    assert table is not None
    assert step_seconds(table, 8).item() == pytest.approx(0.012)
    # 9 ms a token, 1.5 tokens a step, and the target takes 10 to 12 ms for five tokens.
    assert table.draft[0].seconds == pytest.approx(0.0135 - np.interp(5, [1, 8], [0.010, 0.012]))


def test_points_that_say_nothing_are_left_out() -> None:
    good = sweep(draft_s=0.0)
    bad = (
        Point("plain", 64, 1e9, usable=False),
        Point("draft", 64, 1e9, None, 10, 40),
        Point("plain", 128, 1e9, request_rate=3.0),
        Point("ngram", 256, 1e9, 2.0, 10, 40),
    )
    table, notes = sweep_costs(Sweep((*good.points, *bad)))
    assert table == sweep_costs(good)[0]
    assert notes == ["cost table: 2 load points could not be used"]


def test_without_a_curve_there_is_no_table_and_it_is_said() -> None:
    assert sweep_costs(None) == (
        None,
        ["no load was measured: there is no cost table, and no speed can be predicted"],
    )
    one = Sweep((Point("plain", 1, 100.0), Point("draft", 1, 150.0, 1.5, 10, 40)))
    table, notes = sweep_costs(one)
    assert table is None and "two concurrencies of the arm 'plain', 1 were measured" in notes[0]
    assert cost_table([(4, 100.0), (4, 90.0)]) is None


def test_drafting_is_estimated_where_no_plain_step_was_as_large() -> None:
    table = cost_table([(1, 100.0), (2, 100.0)], [Drafted(1, 9, 80.0), Drafted(2, 18, 60.0)])
    assert table is not None and "estimated" in table.notes[0]
    assert table.draft[0].seconds == pytest.approx(1 / 80 - 0.01)
    assert step_seconds(table, 18, drafting=2).item() == pytest.approx(1 / 60)


def test_the_interpreters_costs_are_said_to_mean_nothing() -> None:
    table, _ = sweep_costs(Sweep(sweep(draft_s=0.0).points, speed_is_meaningful=False))
    assert table is not None and not table.meaningful and "mean nothing" in table.notes[-1]


def test_beyond_the_measured_batches_the_last_slope_goes_on() -> None:
    points = [(1.0, 10.0), (4.0, 10.0), (8.0, 18.0)]
    assert curve(points, [0.5, 6, 8, 10]).tolist() == [10.0, 14.0, 18.0, 22.0]
    assert curve(points[:1], [0, 100]).tolist() == [10.0, 10.0]
    assert curve([], [1, 2]).tolist() == [0.0, 0.0]
    table = cost_table([(1, 100.0), (8, 50.0)])
    assert table is not None
    assert [is_measured(table, tokens) for tokens in (1, 8, 9)] == [True, True, False]


def test_a_measurement_that_falls_is_pooled_with_its_neighbour() -> None:
    assert never_falling([(1, 10.0), (2, 14.0), (4, 12.0), (8, 20.0), (8, 22.0)]) == [
        (1.0, 10.0), (2.0, 13.0), (4.0, 13.0), (8.0, 21.0)
    ]  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.floats(0.001, 10)), min_size=1, max_size=12))
def test_pooling_never_falls_and_keeps_the_mean(points: list[tuple[int, float]]) -> None:
    found = never_falling(points)
    values = [value for _, value in found]
    assert all(later >= earlier - 1e-9 for earlier, later in pairwise(values))
    places = {place for place, _ in points}
    means = [np.mean([value for at, value in points if at == place]) for place in places]
    assert np.mean(values) == pytest.approx(np.mean(means))
