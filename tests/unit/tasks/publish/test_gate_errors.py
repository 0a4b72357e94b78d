"""How often the gate errs, on rounds of real replays: no gain, a true gain, a domain that falls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from drafts import captures, checkpoint
from resampled_drafts import Comparison, chance_of_one_more, compared, macro_tau, recorded

from profiles.load import load_profile
from tasks.measure.intervals import Bootstrap
from tasks.publish.gate import Rules, ToBeat, decide, rules_of
from tasks.publish.models import Decision

ROUNDS = recorded()
HOW = Bootstrap(2000, 0.90, 0)
"""As every profile has it unless it says otherwise."""
GAIN = chance_of_one_more(ROUNDS, 0.05)


def rules() -> Rules:
    """Those of a profile that sets none."""
    return replace(rules_of(load_profile("laptop").profile), max_live_gap=1.0)


def decisions(
    count: int, prompts: int, change: float, seed: int, fallen: Mapping[str, float] | None = None
) -> list[tuple[Comparison, Decision]]:
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        one = compared(generator, ROUNDS, prompts, change, fallen or {})
        report = one.report(HOW)
        draft = checkpoint(Path("/nonexistent"))
        found.append((one, decide(rules(), report, draft, captures(), ToBeat("v0001"))))
    return found


def share(found: list[tuple[Comparison, Decision]]) -> float:
    return sum(decision.promote for _, decision in found) / len(found)


def test_the_recorded_rounds_are_those_of_a_draft() -> None:
    assert len(ROUNDS) == 9 and sum(len(prompts.lengths) for prompts in ROUNDS.values()) >= 100
    assert 1.05 < macro_tau(ROUNDS) < 5.0 and 0 < GAIN < 0.5


def test_a_draft_seldom_beats_itself_and_a_gain_is_mostly_found() -> None:
    """The small form of the two rows below."""
    assert share(decisions(40, 108, 0.0, seed=1)) <= 0.05
    assert share(decisions(25, 300, GAIN, seed=2)) >= 0.8


Record = Callable[[str, object], None]


@pytest.mark.verify("gate")
@pytest.mark.parametrize("prompts", [108, 300])
def test_self_promotion(prompts: int, record_property: Record) -> None:
    """500 resampled comparisons of a draft with itself: at most 5 % are promoted."""
    promoted = share(decisions(500, prompts, 0.0, seed=10))
    record_property("promoted", f"{promoted:.1%}")
    assert promoted <= 0.05


@pytest.mark.verify("gate")
@pytest.mark.parametrize(("prompts", "least"), [(108, 0.5), (300, 0.8)])
def test_a_true_gain(prompts: int, least: float, record_property: Record) -> None:
    """A draft whose acceptance length is 5 % longer is promoted, of 300 comparisons in at least"""
    promoted = share(decisions(300, prompts, GAIN, seed=11))
    record_property("promoted", f"{promoted:.1%}")
    assert promoted >= least


@pytest.mark.verify("gate")
def test_a_draft_that_is_worse(record_property: Record) -> None:
    """A draft whose acceptance length is 2 % shorter: of 300 comparisons at most 1 % are promoted."""
    promoted = share(decisions(300, 300, -chance_of_one_more(ROUNDS, -0.02), seed=12))
    record_property("promoted", f"{promoted:.1%}")
    assert promoted <= 0.01


@pytest.mark.verify("gate")
@pytest.mark.parametrize("prompts", [108, 300])
def test_domains(prompts: int, record_property: Record) -> None:
    """The domain rule: held by a fall that is not there, by point alone, and held by a true fall of 15 %."""
    calm = decisions(300, prompts, GAIN, seed=13)
    false = sum(any("a fall of" in one for one in decision.against) for _, decision in calm) / len(calm)
    by_point = sum(
        any("a fall of" in one for one in (*decision.against, *decision.remarks)) for _, decision in calm
    ) / len(calm)
    name = max(ROUNDS, key=lambda one: ROUNDS[one].accepted.sum() / ROUNDS[one].lengths.sum())
    lost = -chance_of_one_more({name: ROUNDS[name]}, -0.15)
    falling = decisions(300, prompts, GAIN, seed=14, fallen={name: lost})
    true = sum(any(one.startswith(f"{name}: ") for one in d.against) for _, d in falling) / len(falling)
    record_property("held without a fall", f"{false:.1%}")
    record_property("held by point alone", f"{by_point:.1%}")
    record_property("a fall of 15 % found", f"{true:.1%}")
    assert false <= 0.10 and false <= by_point
