"""Time from rates: what it is made of, how it scales, and who waits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from profiles.load import load_profile
from profiles.schema import Profile
from tasks.errors import UsageError
from tasks.plan.compare import compared, parse_sets
from tasks.plan.cost import planned_cost
from tasks.plan.figures import Figure
from tasks.plan.predict import Load, predict
from tasks.plan.rates import RateName, Rates
from tasks.plan.timeline import Phase, idle_node_hours, periods, phases, total_seconds
from tasks.plan.topology import planned_topology

VALUES: dict[RateName, float] = {
    "validate_s": 10, "serve_start_s": 30, "capture_start_s": 5, "capture_tokens_per_s": 200,
    "sample_tokens": 100, "train_start_s": 12, "step_s": 0.5, "step_fill": 0.8, "held_out_sample_s": 0.01,
    "arm_start_s": 40, "replay_answer_s": 0.05, "live_token_s": 0.2, "publish_s": 1, "around_s": 7,
}  # fmt: skip
LOAD = Load(
    samples=400, trained=300, held_out=20, answers=80, sample_tokens=90, token_bytes=1000, arms=2, servers=1,
    train_ranks=1,
)  # fmt: skip


def rates(**changes: float) -> Rates:
    values = {**VALUES, **changes}
    return Rates(
        runs=("r1",), samples=40, steps=10, batch_tokens=512, concurrency=8,
        rates={name: Figure(value=value, unit="s", source="measured", where="run r1")
               for name, value in values.items()},  # type: ignore[misc]
    )  # fmt: skip


def laptop(**parts: Any) -> Profile:
    live = {"arms": ["plain", "draft"], "again_per_domain": 0, "per_domain": 4, "max_new_tokens": 16}
    given = {"train": {"epochs": 2}, "evaluate": {"live": live}}
    return load_profile("laptop", {**given, **parts}).profile


def test_every_stage_is_work_times_its_rates() -> None:
    found = predict(laptop(), LOAD, rates())
    steps = 2 * round(300 * 100 / (512 * 0.8))
    assert found.steps == steps
    wanted = {
        "validate": 10, "serve": 30, "stream": 5 + 400 * 100 / 200,
        "train": 12 + 0.5 * steps + 0.01 * 20 * 3,
        "evaluate": 80 * 0.05 + 2 * 40 + 9 * 4 * 2 * 16 * 0.2, "publish": 1,
    }  # fmt: skip
    assert {name: figure.value for name, figure in found.stages.items()} == pytest.approx(wanted)
    total = total_seconds(phases(laptop(), found), found.around)
    assert total.value == pytest.approx(sum(wanted.values()) + 7)
    assert (found.stages["serve"].source, found.stages["stream"].source) == ("measured", "estimated")
    assert "run r1" in found.stages["stream"].where


def test_measured_lengths_hold_for_answers_as_long() -> None:
    longest = laptop().stream.max_new_tokens
    same = predict(laptop(), LOAD, rates().model_copy(update={"max_new_tokens": longest}))
    other = predict(laptop(), LOAD, rates().model_copy(update={"max_new_tokens": longest // 2}))
    assert (same.capture_s, other.capture_s) == pytest.approx((400 * 100 / 200, 400 * 90 / 200))
    assert any("answers of up to 32 tokens" in note for note in other.notes) and not same.notes


def test_half_the_steps_take_half_of_the_steps_time() -> None:
    whole = predict(laptop(), LOAD, rates())
    half = predict(laptop(train={"epochs": 2, "max_steps": whole.steps // 2}), LOAD, rates())
    difference = (whole.stages["train"].value or 0) - (half.stages["train"].value or 0)
    assert difference == pytest.approx(0.5 * (whole.steps - whole.steps // 2))


def test_a_missing_rate_leaves_its_stage_and_the_whole_unknown() -> None:
    some = rates().model_copy(update={"rates": {k: v for k, v in rates().rates.items() if k != "step_s"}})
    found = predict(laptop(), LOAD, some)
    assert found.stages["train"] == Figure(unit="s") and found.stages["stream"].value is not None
    assert phases(laptop(), found) == []
    cost = planned_cost(laptop(), planned_topology(laptop()), None, ())
    assert (cost.node_hours, cost.gpu_hours, cost.money, cost.over_budget) == (None, None, None, False)


def test_more_servers_and_ranks_are_an_estimate() -> None:
    load = replace(LOAD, servers=3, train_ranks=2)
    found = predict(laptop(train={"epochs": 2, "packs_per_step": 2}), load, rates())
    assert found.flow.capture_tokens_per_s.value == pytest.approx(600)
    assert found.flow.capture_tokens_per_s.source == "estimated"
    # Two packs on two ranks take as long as one pack on one rank.
    assert found.flow.train_tokens_per_s.value == pytest.approx(2 * 512 * 0.8 / 0.5)


@pytest.mark.parametrize(
    ("changes", "overlap", "said"),
    [
        ({"capture_tokens_per_s": 200}, True, "the trainer waits for the capture: it could take 4.1 times"),
        ({"capture_tokens_per_s": 2000}, True, "the capture runs ahead of the trainer"),
        ({"capture_tokens_per_s": 200}, False, "one after the other"),
        ({"capture_tokens_per_s": 2000, "store_bytes_per_s": 5e5}, True, "the store carries 500 tokens/s"),
    ],
)
def test_who_waits_for_whom(changes: dict[str, float], overlap: bool, said: str) -> None:
    found = predict(laptop(stream={"overlap": overlap}), LOAD, rates(**changes))
    assert said in found.flow.sentence
    assert found.flow.needed_gb_per_s.value == pytest.approx(changes["capture_tokens_per_s"] * 1000 / 1e9)


def test_overlap_ends_no_earlier_than_the_capture_and_no_later_than_one_after_the_other() -> None:
    def end(**parts: Any) -> float:
        found = predict(laptop(**parts), LOAD, rates())
        return phases(laptop(**parts), found)[-1].end_s

    one, alone = {"train": {"epochs": 1}}, end(train={"epochs": 1})
    beside = end(**one, stream={"overlap": True})
    captured = 10 + 30 + 5 + 200
    rest = 80 * 0.05 + 2 * 40 + 9 * 4 * 2 * 16 * 0.2 + 1
    assert beside == pytest.approx(captured + rest)  # one epoch of training fits beside the capture
    assert captured + rest < alone
    two = end(stream={"overlap": True})
    assert beside < two < end()


def test_idle_nodes_are_counted() -> None:
    profile = load_profile("gb300-kimi-k3").profile
    rows = [Phase("stream", 0, 3600, {"serve": "captures"}), Phase("train", 3600, 7200, {"train": "trains"})]
    found = periods(rows, planned_topology(profile))
    assert idle_node_hours(found) == pytest.approx(1 + 2)  # one training node, then two serving nodes
    assert [one.node for one in found if not one.busy] == ["serve-0", "serve-1", "train-0"]
    priced = load_profile("gb300-kimi-k3", {"evaluate": {"prices": {"serving_gpu_hour": 3.0}}}).profile
    cost = planned_cost(priced, planned_topology(priced), 7200, found)
    assert (cost.gpus, cost.gpu_hours, cost.money) == (12, 24.0, 72.0)
    assert planned_cost(profile, planned_topology(profile), 7200, found).money is None


def test_sets_are_compared_and_incomplete_servers_are_said() -> None:
    profile = load_profile("gb300-kimi-k3", {"stream": {"overlap": True}}).profile
    load = replace(LOAD, train_ranks=4)
    one, two, three, five = compared(profile, load, rates(), parse_sets("1+1,2+1,3+1,4+1"), 2)
    assert one.servers == 0 and "hold no server: one takes 2" in one.note and one.seconds.value is None
    assert (two.servers, three.servers, five.servers) == (1, 1, 2)
    assert "1 serving nodes make up no whole server" in three.note
    assert (three.idle_node_hours or 0) > (two.idle_node_hours or 0)
    assert (five.seconds.value or 0) < (two.seconds.value or 0) == pytest.approx(three.seconds.value)
    assert "capture" in two.flow.sentence


@pytest.mark.parametrize("text", ["", "1", "1+", "0+1", "1+1;2+1", "a+b"])
def test_what_is_no_set_is_said(text: str) -> None:
    with pytest.raises(UsageError, match="is not a set of nodes"):
        parse_sets(text)
