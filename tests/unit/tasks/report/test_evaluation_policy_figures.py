"""Figures of calibration and policy: what they show, and that they draw nothing from nothing."""

from __future__ import annotations

import pytest

from tasks.evaluate.policy.models import (
    Calibration,
    CostTable,
    Half,
    PolicyReport,
    PositionReliability,
    Recommended,
    Reliability,
    StepCost,
    Temperature,
)
from tasks.report.evaluation_policy_figures import policy_drawings
from tasks.report.figures import MAX_PNG_BYTES

BEFORE = Reliability(
    counts=(60, 30, 10), confidence=(0.1, 0.5, 0.9), accepted=(0.05, 0.3, 0.6), total=100,
    total_accepted=18, ece=0.12, noise=0.02, auc=0.8,
)  # fmt: skip
AFTER = BEFORE.model_copy(update={"confidence": (0.06, 0.32, 0.62), "ece": 0.013})


def half() -> Half:
    position = PositionReliability(
        position=1, conditional_before=BEFORE, conditional_after=AFTER, cumulative_before=BEFORE,
        cumulative_after=AFTER,
    )  # fmt: skip
    return Half(
        prompts=9, blocks=100, positions=(position,), before=BEFORE, after=AFTER, cumulative_before=BEFORE,
        cumulative_after=AFTER, cumulative_ece_before=0.12, cumulative_ece_after=0.013,
    )  # fmt: skip


def report(fitted: bool = True, meaningful: bool = True) -> PolicyReport:
    calibration = Calibration(
        temperatures=(Temperature(position=1, value=2.0, fitted=fitted),), fit=half(), report=half(),
        anchors="rounds", bins=20,
    )  # fmt: skip
    costs = CostTable(verify=(StepCost(tokens=1, seconds=0.01, steps_per_s=100),), meaningful=meaningful)
    advice = [
        Recommended(
            concurrency=concurrency, num_speculative_tokens=tokens, expected_tau=1.5, expected_speedup=1.4,
            expected_speedup_low=1.3, expected_speedup_high=1.5, vllm_options={},
        )
        for concurrency, tokens in ((1, 7), (16, 3))
    ]  # fmt: skip
    return PolicyReport(calibration=calibration, costs=costs, recommendation=tuple(advice))


def test_each_figure_is_drawn_small_enough_with_its_units() -> None:
    drawn = policy_drawings(report())
    texts = {name: drawing.svg() for name, drawing in drawn.items() if drawing}
    assert set(texts) == {"reliability", "calibration", "speedup_by_tokens"}
    assert "as trained, ECE 12.0 %" in texts["reliability"]
    assert "after scaling, ECE 1.3 %" in texts["reliability"]
    assert "accepted, % of blocks" in texts["reliability"]
    assert "calibration error (ECE), %" in texts["calibration"] and "by chance alone" in texts["calibration"]
    assert "K=7" in texts["speedup_by_tokens"] and "requests in flight" in texts["speedup_by_tokens"]
    for drawing in drawn.values():
        assert drawing is not None and len(drawing.png()) <= MAX_PNG_BYTES


def test_what_was_not_fitted_is_not_shown_as_scaled() -> None:
    drawing = policy_drawings(report(fitted=False))["reliability"]
    assert drawing is not None and "after scaling" not in drawing.svg()


def test_speeds_of_the_interpreter_are_labelled() -> None:
    drawing = policy_drawings(report(meaningful=False))["speedup_by_tokens"]
    assert drawing is not None and "meaningless" in drawing.title


@pytest.mark.parametrize("nothing", [None, PolicyReport()], ids=["no policy", "empty"])
def test_nothing_is_drawn_from_nothing(nothing: PolicyReport | None) -> None:
    assert set(policy_drawings(nothing).values()) == {None}
