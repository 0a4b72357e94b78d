"""Pareto fronts, targets, capacity, GPU-hours and break-even."""

from __future__ import annotations

from typing import Any

import pytest
from load_sweeps import point, sweep

from profiles.evaluation import Prices, Slo
from profiles.hardware import Hardware
from tasks.evaluate.load.models import LoadPoint
from tasks.evaluate.worth.capacity import capacities
from tasks.evaluate.worth.conclude import curves_of
from tasks.evaluate.worth.costs import break_even, gpus_of_argv, spent
from tasks.evaluate.worth.models import Capacity, Spent
from tasks.evaluate.worth.objectives import highest_met, objectives
from tasks.evaluate.worth.pareto import front, matched, throughput_at
from tasks.evaluate.worth.points import Cells, usable

HOUR = 3600.0


def at(arm: str, concurrency: int, per_user: float, **changes: Any) -> LoadPoint:
    return point(
        arm, concurrency, 2.0 if arm == "draft" else None, tokens_per_s_per_user=per_user,
        output_tokens_per_s=per_user * concurrency, **changes,
    )  # fmt: skip


def cells(*points: LoadPoint) -> Cells:
    return usable(points, {})[0]


TWO = cells(
    at("plain", 1, 100), at("plain", 4, 75), at("plain", 16, 40),
    at("draft", 1, 250), at("draft", 4, 150), at("draft", 16, 50), at("draft", 32, 20),
)  # fmt: skip


def test_a_front_leaves_out_what_another_point_beats_in_both_figures() -> None:
    assert [p.concurrency for p in front(TWO, "plain")] == [16, 4, 1]
    slower_and_less = cells(at("draft", 1, 250), at("draft", 4, 150), at("draft", 16, 30))
    assert [p.concurrency for p in front(slower_and_less, "draft")] == [4, 1]


def test_throughput_is_interpolated_and_never_extrapolated() -> None:
    plain = front(TWO, "plain")
    assert throughput_at(plain, 75) == (300, "measured")
    assert throughput_at(plain, 57.5) == (pytest.approx(470), "interpolated")
    assert throughput_at(plain, 101) is None and throughput_at(plain, 39) is None


def test_matched_interactivity_is_where_both_arms_were_measured() -> None:
    found = matched(front(TWO, "plain"), front(TWO, "draft"), wanted=60)
    assert [one.tokens_per_s_per_user for one in found] == [50, 60, 75, 100]
    by_place = {one.tokens_per_s_per_user: one for one in found}
    assert by_place[60].ratio == pytest.approx(1.75)
    assert all(one.basis == "interpolated" for one in found)
    assert matched(front(TWO, "plain"), ()) == ()


def test_targets_are_met_by_every_repetition_or_not_at_all() -> None:
    slow = at("draft", 4, 150, ttft_ms={"p50": 700, "p90": 900, "p99": 1000})
    found = objectives(cells(at("draft", 1, 250), at("draft", 4, 150), slow), Slo(ttft_p50_ms=500))
    assert [(one.concurrency, one.met) for one in found] == [(1, True), (4, False)]
    assert found[1].misses == ("TTFT p50, ms, 700 > 500",)
    assert highest_met(found, "draft") == 1 and highest_met(found, "plain") is None
    assert objectives(TWO, Slo()) == ()


def test_a_target_that_was_not_measured_is_not_met() -> None:
    unknown = at("draft", 1, 250, itl_ms={"p50": 20})
    (one,) = objectives(cells(unknown), Slo(itl_p99_ms=50))
    assert one.met is None and one.misses == ("ITL p99, ms,: not measured",)


def capacity_of(slo: Slo, gpus: int | None = 8, of: Cells = TWO) -> tuple[Capacity, ...]:
    return capacities(of, objectives(of, slo), slo, gpus)


def test_capacity_at_a_speed_per_user_is_read_off_the_front() -> None:
    plain, draft = capacity_of(Slo(tokens_per_s_per_user=60, load_tokens_per_s=3000))
    assert (plain.basis, draft.basis) == ("interpolated", "interpolated")
    assert plain.tokens_per_s_per_server == pytest.approx(640 - 340 * 20 / 35)
    assert draft.tokens_per_s_per_gpu == pytest.approx((800 - 200 * 10 / 100) / 8)
    assert (plain.gpus_needed, draft.gpus_needed) == (56, 32)
    assert plain.gpus_basis == "extrapolated"


def test_other_targets_hold_only_where_they_were_measured() -> None:
    plain, draft = capacity_of(Slo(ttft_p50_ms=210, load_tokens_per_s=200))
    assert (plain.tokens_per_s_per_server, plain.concurrency, plain.basis) == (300, 4, "measured")
    assert draft.tokens_per_s_per_server == 600
    assert (plain.gpus_needed, plain.gpus_basis) == (8, "measured")


def test_a_limit_below_the_slowest_point_takes_that_point() -> None:
    plain, _ = capacity_of(Slo(tokens_per_s_per_user=10))
    assert (plain.tokens_per_s_per_server, plain.basis) == (640, "measured")


@pytest.mark.parametrize(
    ("slo", "gpus", "why"),
    [
        (Slo(tokens_per_s_per_user=900), 8, "no measured point meets the targets"),
        (Slo(), 0, "this machine has no GPU"),
        (Slo(), None, "set evaluate.prices.gpus_per_server"),
    ],
)
def test_what_cannot_be_said_has_its_reason(slo: Slo, gpus: int | None, why: str) -> None:
    _, draft = capacity_of(slo, gpus)
    assert draft.tokens_per_s_per_gpu is None and why in draft.why_not
    assert capacities({}, (), slo, gpus) == ()


TRAYS = Hardware.model_validate(
    {
        "mode": "nvidia",
        "roles": {
            "colocated": False,
            "serve": {"nodes": 2, "gpus_per_node": 4},
            "train": {"nodes": 1, "gpus_per_node": 4},
        },
    }
)
SECONDS = {"validate": 60.0, "serve": HOUR / 2, "stream": HOUR, "train": 2 * HOUR, "evaluate": HOUR / 2}


def test_gpu_hours_count_the_gpus_of_each_stages_role() -> None:
    found = spent(TRAYS, SECONDS)
    assert found.gpus == 12
    assert found.used_gpu_hours == pytest.approx(8 * 2 + 4 * 2)
    assert found.reserved_gpu_hours == pytest.approx(12 * 4)
    assert found.notes == ("attempts that failed or were interrupted are not counted",)


def test_gpu_hours_of_other_machines() -> None:
    laptop = spent(Hardware(), SECONDS)
    assert (laptop.gpus, laptop.reserved_gpu_hours) == (0, 0.0) and laptop.notes[0] == "this run had no GPU"
    one = Hardware.model_validate({"mode": "nvidia"})
    assert spent(one, SECONDS).reserved_gpu_hours is None
    assert spent(one, SECONDS, seen=1).reserved_gpu_hours == pytest.approx(4)
    missing = spent(TRAYS, {"evaluate": HOUR})
    assert missing.used_gpu_hours == pytest.approx(8) and "not known: serve, stream, train" in missing.notes


@pytest.mark.parametrize(
    ("argv", "gpus"),
    [
        ((), None),
        (("vllm", "serve", "m"), 1),
        (("vllm", "serve", "--tensor-parallel-size", "8", "-pp", "2"), 16),
        (("vllm", "--tensor-parallel-size=4", "--data-parallel-size=2"), 8),
    ],
)
def test_gpus_of_a_command_line(argv: tuple[str, ...], gpus: int | None) -> None:
    assert gpus_of_argv(argv) == gpus


def test_break_even_by_hand() -> None:
    """48 GPU-hours at 3 are 144. A plain server of 8 GPUs costs 24 an hour, and half of it is saved."""
    served = capacity_of(Slo(ttft_p50_ms=210))
    curve = curves_of(TWO, 0.05, 0.90)[0]
    found = break_even(Prices(serving_gpu_hour=3), spent(TRAYS, SECONDS), served, curve)
    assert (found.cost, found.saved_per_hour) == (pytest.approx(144), pytest.approx(12))
    assert found.hours.value == pytest.approx(12)
    assert found.hours.low is not None and found.hours.high is not None
    assert found.hours.low < 12 < found.hours.high
    loaded = break_even(Prices(serving_gpu_hour=3), spent(TRAYS, SECONDS), served, curve, 3000)
    assert loaded.hours.value == pytest.approx(1.2)
    dearer = Prices(serving_gpu_hour=3, training_gpu_hour=6, other_costs=12)
    assert break_even(dearer, spent(TRAYS, SECONDS), served, curve).hours.value == pytest.approx(25)


def test_a_speed_up_that_may_be_none_has_no_upper_bound_of_hours() -> None:
    served = capacity_of(Slo(ttft_p50_ms=210))
    curve = curves_of(TWO, 0.5, 0.90)[0]
    found = break_even(Prices(serving_gpu_hour=3), spent(TRAYS, SECONDS), served, curve)
    assert found.hours.low is not None and found.hours.high is None


@pytest.mark.parametrize(
    ("prices", "cost", "served", "why"),
    [
        (Prices(), spent(TRAYS, SECONDS), capacity_of(Slo()), "no evaluate.prices.serving_gpu_hour"),
        (Prices(serving_gpu_hour=3), None, capacity_of(Slo()), "GPU-hours of the retraining are not known"),
        (Prices(serving_gpu_hour=3), spent(TRAYS, SECONDS), (), "no speed was measured"),
        (Prices(serving_gpu_hour=3), spent(TRAYS, SECONDS), capacity_of(Slo(), 0), "GPUs of one server"),
        (
            Prices(serving_gpu_hour=3),
            spent(TRAYS, SECONDS),
            capacity_of(Slo(), 8, usable(sweep({"plain": None, "draft": 1.0}).points, {})[0]),
            "it never pays at these operating points",
        ),
    ],
)
def test_no_break_even_without_a_price_or_a_gain(
    prices: Prices, cost: Spent | None, served: tuple[Capacity, ...], why: str
) -> None:
    found = break_even(prices, cost, served, None)
    assert found.hours.value is None and why in found.why_not
