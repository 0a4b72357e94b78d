"""What a number of prompts can tell apart."""

from __future__ import annotations

import random

import pytest

from tasks.evaluate.worth.models import Figure
from tasks.evaluate.worth.power import power
from tasks.measure.acceptance import PromptCounts
from tasks.measure.intervals import Bootstrap, Interval, paired_macro_difference

HOW = Bootstrap(200, 0.90, 0)


def paired(prompts: int, gain: float, chance: random.Random) -> Interval:
    """A draft against another on the same prompts: its acceptance is higher by `gain` on average."""
    new, old = [], []
    for _ in range(prompts):
        level = chance.gauss(1.8, 0.4)
        old.append(PromptCounts(100, round(100 * (level - 1 + chance.gauss(0, 0.1)))))
        new.append(PromptCounts(100, round(100 * (level - 1 + gain + chance.gauss(0, 0.1)))))
    return paired_macro_difference({"qa": new}, {"qa": old}, HOW)


def figure(found: Interval) -> Figure:
    return Figure(value=found.value, low=found.low, high=found.high)


def test_the_detectable_gain_is_detected_in_four_of_five_experiments() -> None:
    chance = random.Random(5)
    first = power("gain", figure(paired(40, 0.0, chance)), 40, 0.90)
    assert first is not None
    found = [paired(40, first.detectable, chance) for _ in range(300)]
    assert 0.70 < sum((one.low or 0) > 0 for one in found) / len(found) < 0.90


def test_so_many_more_prompts_settle_what_was_open() -> None:
    chance = random.Random(11)
    pilot = power("gain", Figure(value=0.03, low=-0.02, high=0.08), 20, 0.90)
    assert pilot is not None and pilot.more_prompts is not None
    assert pilot.prompts == 20 and pilot.detectable == pytest.approx(0.0756, abs=0.001)
    # The pilot's standard error is that of `paired` at about 20 prompts.
    error = (0.08 + 0.02) / 2 / 1.645
    assert error == pytest.approx(0.14 / 20**0.5, rel=0.05)
    many = [paired(20 + pilot.more_prompts, 0.03, chance) for _ in range(120)]
    assert 0.68 < sum((one.low or 0) > 0 for one in many) / len(many) < 0.92


def test_what_is_settled_needs_no_more_and_nothing_settles_no_difference() -> None:
    settled = power("gain", Figure(value=0.2, low=0.1, high=0.3), 50, 0.90)
    none = power("gain", Figure(value=0.0, low=-0.1, high=0.1), 50, 0.90)
    assert settled is not None and settled.more_prompts is None
    assert none is not None and none.more_prompts is None
    assert power("gain", Figure(value=0.1), 50, 0.90) is None
    assert power("gain", Figure(), 0, 0.90) is None
