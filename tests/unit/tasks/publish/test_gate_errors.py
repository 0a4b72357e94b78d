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

KINDS = {kind: recorded(kind) for kind in ("unseen", "seen")}
HOW = Bootstrap(2000, 0.90, 0)
"""As every profile has it unless it says otherwise."""
GAIN = {kind: chance_of_one_more(rounds, 0.05) for kind, rounds in KINDS.items()}


def rules() -> Rules:
    """Those of a profile that sets none."""
    return replace(rules_of(load_profile("laptop").profile), max_live_gap=1.0)


def decisions(
    kind: str,
    count: int,
    prompts: int,
    change: float,
    seed: int,
    fallen: Mapping[str, float] | None = None,
) -> list[tuple[Comparison, Decision]]:
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        one = compared(generator, KINDS[kind], prompts, change, fallen or {})
        report = one.report(HOW)
        draft = checkpoint(Path("/nonexistent"))
        found.append((one, decide(rules(), report, draft, captures(), ToBeat("v0001"))))
    return found


def share(found: list[tuple[Comparison, Decision]]) -> float:
    return sum(decision.promote for _, decision in found) / len(found)


@pytest.mark.parametrize(("kind", "low", "high"), [("unseen", 1.1, 1.3), ("seen", 1.6, 1.8)])
def test_the_recorded_rounds_are_those_of_drafts(kind: str, low: float, high: float) -> None:
    rounds = KINDS[kind]
    assert len(rounds) == 9 and sum(len(prompts.lengths) for prompts in rounds.values()) >= 100
    assert low < macro_tau(rounds) < high and 0 < GAIN[kind] < 0.5


def test_a_draft_seldom_beats_itself_and_a_gain_is_mostly_found() -> None:
    """The small form of the two rows below."""
    assert share(decisions("seen", 25, 108, 0.0, seed=1)) <= 0.05
    assert share(decisions("seen", 15, 300, GAIN["seen"], seed=2)) >= 0.8


Record = Callable[[str, object], None]
both_kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.mark.verify("gate")
@both_kinds
@pytest.mark.parametrize("prompts", [108, 300])
def test_self_promotion(prompts: int, kind: str, record_property: Record) -> None:
    """500 resampled comparisons of a draft with itself: at most 5 % are promoted."""
    promoted = share(decisions(kind, 500, prompts, 0.0, seed=10))
    record_property("promoted", f"{promoted:.1%}")
    assert promoted <= 0.05


@pytest.mark.verify("gate")
@both_kinds
@pytest.mark.parametrize(("prompts", "least"), [(108, 0.5), (300, 0.8)])
def test_a_true_gain(prompts: int, least: float, kind: str, record_property: Record) -> None:
    """A draft whose acceptance length is 5 % longer, 200 comparisons: at least this share is promoted."""
    promoted = share(decisions(kind, 200, prompts, GAIN[kind], seed=11))
    record_property("promoted", f"{promoted:.1%}")
    assert promoted >= least


@pytest.mark.verify("gate")
@both_kinds
def test_a_draft_that_is_worse(kind: str, record_property: Record) -> None:
    """A draft whose acceptance length is 2 % shorter: of 200 comparisons at most 1 % are promoted."""
    loss = -chance_of_one_more(KINDS[kind], -0.02)
    promoted = share(decisions(kind, 200, 300, loss, seed=12))
    record_property("promoted", f"{promoted:.1%}")
    assert promoted <= 0.01


@pytest.mark.verify("gate")
@both_kinds
@pytest.mark.parametrize("prompts", [108, 300])
def test_domains(prompts: int, kind: str, record_property: Record) -> None:
    """Domains: no change held by the rule, and by points alone; a true fall of 15 % in one found."""
    rounds = KINDS[kind]
    calm = decisions(kind, 200, prompts, 0.0, seed=13)
    false = sum(any("a fall of" in one for one in found.against) for _, found in calm) / len(calm)
    said = [(*found.against, *found.remarks) for _, found in calm]
    by_point = sum(any("a fall of" in one for one in lines) for lines in said) / len(calm)
    name = max(rounds, key=lambda one: rounds[one].accepted.sum() / rounds[one].lengths.sum())
    lost = -chance_of_one_more({name: rounds[name]}, -0.15)
    falling = decisions(kind, 200, prompts, GAIN[kind], seed=14, fallen={name: lost})
    true = sum(any(one.startswith(f"{name}: ") for one in found.against) for _, found in falling)
    record_property("held without a fall", f"{false:.1%}")
    record_property("held by points alone", f"{by_point:.1%}")
    record_property("a fall of 15 % found", f"{true / len(falling):.1%}")
    assert false <= 0.1 and false <= by_point
    assert true / len(falling) >= 0.8
