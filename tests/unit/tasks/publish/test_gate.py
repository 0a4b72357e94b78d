"""The decision, row by row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from drafts import better_than, captures, checkpoint, evaluation, measurement, tau, texts

from profiles.schema import DOMAINS
from tasks.evaluate.models import ArmReport, PromptComparison
from tasks.publish.gate import Rules, ToBeat, decide
from tasks.publish.models import Decision

RULES = Rules(margin=0.05, max_live_gap=0.01, max_failed=0.0, confidence=0.9)
NOWHERE = Path("/nonexistent")


def with_domain(estimate: Any, **parts: Any) -> Any:
    return measurement(domains={**dict.fromkeys(DOMAINS, tau(1.7, 1.5)), "rag": estimate}, **parts)


def judged(beat: ToBeat | None = None, /, rules: Rules = RULES, **changes: Any) -> Decision:
    return decide(rules, evaluation(**changes), checkpoint(NOWHERE), captures(), beat)


def arm(**changes: Any) -> ArmReport:
    return evaluation().arms[0].model_copy(update=changes)


SILENT = tau(None, rounds=0)
DIFFERENT = PromptComparison(prompt_id="qa-1", equal=False, tokens=48, first_difference=3)
HELD: list[tuple[str, dict[str, Any], str]] = [
    ("bound at the limit", {"replay": measurement(1.2, 1.05)}, "not above 1.050"),
    ("mean good, bound not", {"replay": measurement(1.6, 0.9)}, "lower 90% bound 0.900"),
    ("unknown bound", {"replay": measurement(1.6, None)}, "unknown"),
    ("different", {"lossless": "different", "comparisons": (DIFFERENT,)}, "1 of 1 answers differ"),
    ("nothing compared", {"comparisons": ()}, "losslessness was not shown"),
    ("live gap", {"live_gap": 0.02}, "live (1.690) and replay (1.695) differ by 2.00%"),
    ("no live gap", {"live_gap": None}, "no prompts in common"),
    ("no drafts live", {"live": measurement(None, None, pooled=SILENT)}, "live: no drafts were observed"),
    ("no drafts replayed", {"replay": measurement(None, None, pooled=SILENT)}, "replay: no drafts"),
    ("no drafts in a domain", {"live": with_domain(SILENT)}, "no drafts were observed in rag"),
    ("no prompts in a domain", {"replay": with_domain(tau(None, prompts=0, rounds=0))}, "no prompts in rag"),
    ("one prompt in a domain", {"replay": with_domain(tau(1.7, prompts=1))}, "only one prompt in rag"),
    ("a domain is absent", {"live": measurement(domains={"qa": tau(1.7)})}, "live: no prompts in HumanEval"),
    ("failed requests", {"arms": (arm(failed=1),)}, "plain: 1 of 36 requests failed"),
    ("no requests", {"arms": (arm(requests=0),)}, "no request was made"),
    ("no arms", {"arms": ()}, "no server was measured"),
    ("repetition", {"text": texts("repetition")}, "repetition of the answers: 50.0% with the draft, 0.0%"),
    ("emptiness", {"text": texts("emptiness")}, "on 36 prompts (p = 0.0004)"),
    ("length", {"text": texts("length")}, "in two runs (A/A) of the target alone"),
    ("no texts", {"text": None}, "no text was compared"),
    ("live invalid", {"live_valid": False, "notes": ("counters went back",)}, "counters went back"),
]


@pytest.mark.parametrize(("changes", "reason"), [row[1:] for row in HELD], ids=[row[0] for row in HELD])
def test_held_with_the_reason(changes: dict[str, Any], reason: str) -> None:
    decision = decide(RULES, evaluation(**changes), checkpoint(NOWHERE), captures(), None)
    assert not decision.promote
    assert reason in "\n".join(decision.reasons)


def test_a_good_first_draft_is_promoted() -> None:
    decision = decide(RULES, evaluation(), checkpoint(NOWHERE), captures(), None)
    assert decision.promote
    assert decision.incumbent_tau_macro == 1.0
    assert decision.reasons == (
        "first draft: macro acceptance length 1.700, lower 90% bound 1.500, above 1.050",
    )


def test_rounding_ties_do_not_hold() -> None:
    report = evaluation(lossless="within_noise", comparisons=(DIFFERENT,))
    assert decide(RULES, report, checkpoint(NOWHERE), captures(), None).promote


def test_domains_of_a_users_own_are_enough() -> None:
    """Nine domains are our prompts', not everybody's."""
    own = measurement(domains={"support": tau(1.7, 1.5), "contracts": tau(1.7, 1.5)})
    decision = decide(RULES, evaluation(replay=own, live=own), checkpoint(NOWHERE), captures(), None)
    assert decision.promote, decision.reasons


def test_untrained_and_lost() -> None:
    untrained = decide(RULES, evaluation(), checkpoint(NOWHERE, steps=0), captures(), None)
    lost = decide(RULES, evaluation(), checkpoint(NOWHERE), captures(lost=2), None)
    assert not untrained.promote and "untrained" in untrained.reasons[0]
    assert not lost.promote and lost.reasons[0] == "2 captures were lost"


def test_every_reason_is_said() -> None:
    report = evaluation(lossless="different", live_gap=0.5, replay=measurement(1.0, 0.99))
    decision = decide(RULES, report, checkpoint(NOWHERE, steps=0), captures(lost=1), None)
    assert len(decision.reasons) == 5


@pytest.mark.parametrize(
    ("low", "promoted"), [(0.051, True), (0.05, False), (0.0, False), (-0.2, False), (None, False)]
)
def test_against_the_champion_the_paired_bound_decides(low: float | None, promoted: bool) -> None:
    decision = judged(ToBeat("v0001"), **better_than("v0001", low))
    assert decision.promote is promoted
    assert decision.incumbent_tau_macro == pytest.approx(1.5)
    assert (decision.incumbent, decision.standing) == ("v0001", "verified")
    if low is not None:
        assert "against 1.500 of v0001" in decision.reasons[-1]


def test_a_champion_that_was_not_measured_is_not_replaced() -> None:
    unmeasured = judged(ToBeat("v0004"))
    moved = judged(ToBeat("v0004"), **better_than("v0003", 0.9))
    assert not unmeasured.promote and not moved.promote
    assert "v0004 was not measured" in unmeasured.reasons[-1]


def test_an_incumbent_that_cannot_be_measured_says_why() -> None:
    decision = judged(ToBeat("v0004"), incumbent_unmeasured="it reads layers [1]")
    assert decision.standing == "unmeasured" and not decision.promote
    assert "nothing shows a gain (it reads layers [1])" in decision.reasons[-1]
    assert decision.incumbent_tau_macro is None
