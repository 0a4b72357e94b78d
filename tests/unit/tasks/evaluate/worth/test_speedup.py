"""Speed-ups, their intervals, and where they end."""

from __future__ import annotations

import math
import random

import pytest
from load_sweeps import point, sweep

from tasks.evaluate.load.models import LoadPoint
from tasks.evaluate.worth.points import usable
from tasks.evaluate.worth.speedup import Noise, Spread, curve, noise_of
from tasks.measure.quantiles import student, two_sided


def simple(arm: str, concurrency: int, tokens_per_s: float) -> LoadPoint:
    return point(
        arm, concurrency, 2.0 if arm == "draft" else None,
        output_tokens_per_s=tokens_per_s, tokens_per_s_per_user=tokens_per_s / concurrency,
    )  # fmt: skip


def cells_of(*points: LoadPoint):  # type: ignore[no-untyped-def]
    return usable(points, {})[0]


NO_NOISE = Spread(Noise(None, 0), 0.02, 0.90)


def test_the_crossover_is_interpolated_between_doublings() -> None:
    cells = cells_of(
        *(simple("plain", c, 100.0) for c in (4, 8, 16, 32)),
        *(simple("draft", c, v) for c, v in ((4, 200.0), (8, 141.0), (16, 101.0), (32, 70.0))),
    )
    found = curve(cells, "draft", "plain", NO_NOISE)
    assert [point.standing for point in found.points] == ["gain", "gain", "open", "loss"]
    assert found.crossover is not None and 16 < found.crossover < 16.6
    assert found.sure_up_to is not None and found.lost_above is not None
    assert 8 < found.sure_up_to < found.crossover < found.lost_above < 32


def test_a_curve_that_stays_above_one_has_its_crossover_beyond_the_range() -> None:
    cells = cells_of(*(simple(arm, c, v) for arm, v in (("plain", 100.0), ("draft", 150.0)) for c in (1, 2)))
    found = curve(cells, "draft", "plain", NO_NOISE)
    assert found.crossover is None and found.points[-1].standing == "gain"


def test_one_measurement_of_each_point_leaves_only_the_prompts_uncertainty() -> None:
    cells = cells_of(simple("plain", 1, 100.0), simple("draft", 1, 200.0))
    (one,) = curve(cells, "draft", "plain", Spread(noise_of(cells), 0.05, 0.90)).points
    assert one.low == pytest.approx(2 * math.exp(-two_sided(0.90) * 0.05))
    (unknown,) = curve(cells, "draft", "plain", Spread(noise_of(cells), None, 0.90)).points
    assert (unknown.low, unknown.high, unknown.standing) == (None, None, "open")


def test_a_second_plain_arm_is_a_repetition() -> None:
    cells = cells_of(simple("plain", 1, 100.0), simple("plain-again", 1, 104.0), simple("draft", 1, 200.0))
    noise = noise_of(cells)
    assert noise.freedom == 1
    assert noise.deviation == pytest.approx(math.log(1.04) / math.sqrt(2))
    assert {arm for arm, _ in cells} == {"plain", "draft"}


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    """400 sweeps of two repetitions: the 90 % interval holds the true ratio in about 90 % of the points."""
    chance, inside, count = random.Random(3), 0, 0
    for _ in range(100):
        load = sweep(concurrency=(1, 4, 16, 32), deviation=0.03, seed=chance.randrange(10**6))
        truth = sweep(concurrency=(1, 4, 16, 32), deviation=0.0, repeats=1)
        cells, exact = usable(load.points, {})[0], usable(truth.points, {})[0]
        spread = Spread(noise_of(cells), None, 0.90)
        true = curve(exact, "draft", "plain", spread).points
        for one, known in zip(curve(cells, "draft", "plain", spread).points, true, strict=True):
            count += 1
            inside += (one.low or 0) <= known.speedup <= (one.high or 0)
    assert 0.86 < inside / count < 0.94


def test_quantiles() -> None:
    known = {1: 6.3138, 2: 2.9200, 3: 2.3534, 4: 2.1318, 10: 1.8125, 100: 1.6602}
    for freedom, value in known.items():
        assert student(0.90, freedom) == pytest.approx(value, rel=0.004)
    assert two_sided(0.90) == pytest.approx(1.6449, abs=1e-4)
    with pytest.raises(ValueError, match="not 0"):
        student(0.90, 0)


LEFT_OUT = [
    ({"invalid": "others used the server too"}, "invalid: others used the server too"),
    ({"timed_out": True, "seconds": 600.0}, "timed out after 600 s"),
    ({"failed": 32}, "32 of 32 requests failed"),
    ({"output_tokens_per_s": 0.0}, "no output token"),
    ({"draft_tokens": 0}, "no drafts were observed"),
    ({"draft_tokens": None}, "no drafts were observed"),
]


@pytest.mark.parametrize(("changes", "reason"), LEFT_OUT, ids=[reason for _, reason in LEFT_OUT])
def test_bad_points_never_enter_and_are_listed(changes: dict[str, object], reason: str) -> None:
    cells, left_out = usable([point("plain", 1), point("draft", 1, 2.0, **changes)], {})
    assert ("draft", 1) not in cells and ("plain", 1) in cells
    assert [(one.arm, one.concurrency) for one in left_out] == [("draft", 1)]
    assert reason in left_out[0].reason


def test_an_arm_of_other_conditions_is_refused_with_both_values() -> None:
    cells, left_out = usable(sweep().points, {"draft": ["temperature: 0.0 / 1.0"]})
    assert {arm for arm, _ in cells} == {"plain"}
    assert "other conditions: temperature: 0.0 / 1.0" in left_out[0].reason
    assert curve(cells, "draft", "plain", NO_NOISE).points == ()


def test_points_of_a_rate_sweep_are_no_part_of_the_curve() -> None:
    cells, left_out = usable([point("plain", 3, request_rate=2.0)], {})
    assert cells == {} and left_out == ()
