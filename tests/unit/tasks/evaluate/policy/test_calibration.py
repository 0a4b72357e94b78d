"""Sequential Temperature Scaling on heads whose true calibration is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.evaluation import Policy
from tasks.evaluate.policy.calibration import (
    calibrate,
    calibration_notes,
    fit_temperatures,
    scaled,
    temperature_grid,
)
from tasks.evaluate.policy.models import Calibration
from tasks.evaluate.policy.slots import fit_half

Head = Callable[[Any, Any], Any]
SETTINGS = Policy(anchors="all")


def halves(prompts: int) -> Any:
    return fit_half([str(number) for number in range(prompts)])


def calibrated(invented: Any, settings: Policy = SETTINGS) -> Calibration:
    found = calibrate(invented.slots, halves(int(invented.slots.prompt.max()) + 1), settings)
    assert found is not None
    return found


def test_it_finds_the_temperature_that_was_planted(invent: Callable[..., Any], honest_head: Head) -> None:
    """Logits twice (position 1) and half (2) as large as they should be."""
    factors = np.array([2.0, 0.5])
    invented = invent(
        prompts=300,
        positions=2,
        low=0.3,
        high=0.98,
        logits=lambda chance, random: factors * honest_head(chance, random),
    )
    found = calibrated(invented)
    assert [one.value for one in found.temperatures] == pytest.approx(factors, rel=0.3)
    assert all(one.fitted for one in found.temperatures)
    for half in (found.fit, found.report):
        assert half.cumulative_ece_before is not None and half.cumulative_ece_after is not None
        assert half.cumulative_ece_after < 0.6 * half.cumulative_ece_before
    last = found.report.positions[0]
    assert last.cumulative_after.ece is not None and last.cumulative_after.noise is not None
    assert last.cumulative_after.ece < 2 * last.cumulative_after.noise


def test_an_honest_head_stays_as_it_is(invent: Callable[..., Any]) -> None:
    found = calibrated(invent(prompts=300, low=0.3, high=0.98))
    assert found.temperatures[0].value == pytest.approx(1.0, rel=0.2)
    for one in found.report.positions:
        assert one.cumulative_after.ece is not None and one.cumulative_before.noise is not None
        assert one.cumulative_after.ece < 2 * one.cumulative_before.noise


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(-12, 12), min_size=2, max_size=30),
    st.floats(0.1, 10),
)
def test_scaling_keeps_the_order_at_a_position(logits: list[float], temperature: float) -> None:
    column = np.array(logits)[:, None]
    before, after = scaled(column, [1.0])[:, 0], scaled(column, [temperature])[:, 0]
    for left in range(len(logits)):
        assert (after[before > before[left]] >= after[left]).all()
        assert (after[before < before[left]] <= after[left]).all()


def test_ranks_do_not_change_so_neither_does_the_area(invent: Callable[..., Any], honest_head: Head) -> None:
    found = calibrated(invent(prompts=80, logits=lambda *arguments: 3 * honest_head(*arguments)))
    assert found.temperatures[0].value > 1.5
    for one in found.report.positions:
        assert one.conditional_after.auc == pytest.approx(one.conditional_before.auc)


def test_a_later_position_does_not_move_an_earlier_temperature(
    invent: Callable[..., Any], honest_head: Head
) -> None:
    slots = invent(prompts=60, logits=lambda *arguments: 2 * honest_head(*arguments)).slots
    assert slots.confidence is not None
    whole = fit_temperatures(slots.confidence, slots.prefix_right, slots.known, SETTINGS)
    first = fit_temperatures(slots.confidence[:, :2], slots.prefix_right[:, :2], slots.known[:, :2], SETTINGS)
    assert whole[:2] == first


def test_the_two_halves_share_no_prompt_and_no_block(invent: Callable[..., Any]) -> None:
    found = calibrated(invent(prompts=40))
    assert found.fit.prompts + found.report.prompts == 40
    assert found.fit.blocks + found.report.blocks == 40 * 49
    assert found.report.before.total == sum(one.conditional_before.total for one in found.report.positions)


def test_only_blocks_of_rounds_count_unless_all_are_asked_for(invent: Callable[..., Any]) -> None:
    invented = invent(prompts=40)
    found = calibrated(invented, Policy(min_blocks=50))
    assert found.fit.blocks + found.report.blocks == invented.slots.round.sum() < 40 * 49


def test_too_few_blocks_are_said_and_not_fitted(invent: Callable[..., Any]) -> None:
    found = calibrated(invent(prompts=10, tokens=20), Policy(anchors="all", min_blocks=1000))
    assert {one.value for one in found.temperatures} == {1.0}
    assert not any(one.fitted for one in found.temperatures)
    assert "too few blocks" in found.temperatures[0].reason
    assert any("too few blocks" in note for note in calibration_notes(found))


@pytest.mark.parametrize(("low", "high"), [(0.0, 0.0), (1.0, 1.0)], ids=["all wrong", "all right"])
def test_one_outcome_alone_is_not_fitted(low: float, high: float, invent: Callable[..., Any]) -> None:
    found = calibrated(
        invent(low=low, high=high, logits=lambda chance, random: random.normal(size=chance.shape))
    )
    assert not any(one.fitted for one in found.temperatures)
    assert "at least 10 of each" in found.temperatures[0].reason
    assert found.report.positions[0].cumulative_before.auc is None
    assert found.report.positions[0].cumulative_before.ece is not None


@pytest.mark.parametrize(
    "options",
    [
        {"prompts": 1},
        {"prompts": 1, "tokens": 2},
        {"positions": 1},
        {"logits": lambda chance, random: np.full(chance.shape, 1e9)},
        {"logits": lambda chance, random: np.full(chance.shape, -1e9)},
        {"logits": lambda chance, random: np.zeros(chance.shape)},
    ],
    ids=["one prompt", "one block", "one position", "always sure", "never sure", "no opinion"],
)
def test_odd_inputs_give_no_nan(options: dict[str, Any], invent: Callable[..., Any]) -> None:
    found = calibrated(invent(**options))
    assert "NaN" not in found.model_dump_json() and "Infinity" not in found.model_dump_json()
    numbers = [one.value for one in found.temperatures]
    assert np.isfinite(numbers).all() and calibration_notes(found) is not None


def test_a_head_that_no_temperature_mends_is_named(invent: Callable[..., Any]) -> None:
    """Sure of everything, mostly wrong: only a shift would help, and scaling has none."""
    found = calibrated(
        invent(low=0.1, high=0.3, logits=lambda chance, random: random.uniform(1, 3, size=chance.shape))
    )
    assert found.temperatures[0].value == pytest.approx(10.0)
    assert any("no temperature calibrates" in note for note in calibration_notes(found))


def test_without_a_head_there_is_no_calibration(invent: Callable[..., Any]) -> None:
    assert calibrate(invent(logits=None).slots, halves(40), SETTINGS) is None


def test_the_grid_holds_one_and_prefers_it() -> None:
    grid = temperature_grid(Policy(temperature_steps=4))
    assert grid[0] == 1.0 and grid.min() == pytest.approx(0.1) and grid.max() == pytest.approx(10)
