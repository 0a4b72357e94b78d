"""Rules of the gate beside the macro gain: domains, targets that changed, service targets, people."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from drafts import better_than, captures, checkpoint, evaluation

from profiles.evaluation import Slo
from profiles.schema import DOMAINS
from tasks.evaluate.load.models import LoadPoint, Percentiles
from tasks.evaluate.models import Difference
from tasks.evaluate.worth.models import Measured, Worth
from tasks.publish.gate import Rules, ToBeat, decide
from tasks.publish.models import Decision, Word

RULES = Rules(margin=0.05, max_live_gap=0.01, max_failed=0.0, confidence=0.9)
CHANGED = ToBeat("v0001", ("other weights", "engine vllm 0.32 -> vllm 0.33"))


def judged(
    beat: ToBeat | None = None,
    /,
    rules: Rules = RULES,
    words: tuple[Word, ...] = (),
    withdrawn: str = "",
    **changes: Any,
) -> Decision:
    found = evaluation(**changes)
    return decide(rules, found, checkpoint(Path("/nonexistent")), captures(), beat, words, withdrawn)


def with_rag(value: float, low: float, high: float) -> dict[str, Any]:
    """A gain everywhere but in `rag`, where the incumbent has 1.5."""
    domains = dict.fromkeys(DOMAINS, Difference(value=0.2, low=0.1, high=0.3))
    domains["rag"] = Difference(value=value, low=low, high=high)
    return better_than("v0001", incumbent_domains=domains)


def test_a_domain_that_fell_beyond_its_limit_holds() -> None:
    decision = judged(ToBeat("v0001"), **with_rag(-0.15, -0.25, -0.05))
    assert not decision.promote
    words = "rag: acceptance length -0.150 against 1.500, a fall of 10.0%, more than 5.0%"
    assert decision.against == (f"{words} (paired interval -0.250 to -0.050, 90% for all domains together)",)


@pytest.mark.parametrize(
    ("change", "remarks"),
    [((-0.15, -0.4, 0.1), 1), ((-0.07, -0.1, -0.04), 0), ((0.0, 0.0, 0.0), 0)],
    ids=["noise beyond the limit", "a sure fall within the limit", "no change"],
)
def test_a_domain_whose_fall_is_not_shown_or_small_does_not(
    change: tuple[float, float, float], remarks: int
) -> None:
    decision = judged(ToBeat("v0001"), **with_rag(*change))
    assert decision.promote and len(decision.remarks) == remarks
    assert all("holds no change too" in remark for remark in decision.remarks)


def test_no_comparison_by_domain_holds() -> None:
    decision = judged(ToBeat("v0001"), **better_than("v0001", incumbent_domains={}))
    assert not decision.promote and "nothing was compared by domain" in decision.against[0]


def test_an_incumbent_of_another_target_is_unverified_and_measured_again() -> None:
    decision = judged(CHANGED, **better_than("v0001"))
    assert decision.promote and decision.standing == "unverified"
    assert "other weights; engine vllm 0.32 -> vllm 0.33" in decision.remarks[0]
    held = judged(CHANGED, **better_than("v0001", 0.0))
    assert not held.promote, "an unverified incumbent that is as good here stays"


def test_an_incumbent_that_cannot_draft_for_the_new_target_is_no_rival() -> None:
    decision = judged(CHANGED, incumbent_unmeasured="it reads layers [1]")
    assert decision.promote and decision.standing == "unmeasured"
    assert decision.incumbent_tau_macro == 1.0
    assert decision.reasons[-1].startswith("first draft for this target: the target is another")


def point(arm: str, concurrency: int, itl_p90_ms: float | None, invalid: str = "") -> LoadPoint:
    return LoadPoint(
        arm=arm, concurrency=concurrency, requests=16, failed=0, invalid=invalid, seconds=1.0,
        output_tokens=100, output_tokens_per_s=100.0, itl_ms=Percentiles(p90=itl_p90_ms), draft_tokens=9,
    )  # fmt: skip


def loaded(*points: LoadPoint, meaningful: bool = True) -> dict[str, Any]:
    measured = Measured(points=points, speed_is_meaningful=meaningful)
    return {"worth": Worth(verdict="worth", sentence="", measured=measured)}


TARGETS = replace(RULES, slo=Slo(itl_p90_ms=30))


@pytest.mark.parametrize(
    ("points", "reason"),
    [
        ((), "no load was measured"),
        ((point("draft", 1, 50.0), point("plain", 1, 50.0)), "not met with the draft at any concurrency"),
        (
            (
                point("draft", 1, 9.0),
                point("draft", 8, 50.0),
                point("plain", 1, 9.0),
                point("plain", 8, 9.0),
            ),
            "met up to concurrency 1 with the draft and up to 8 without: at 8 ITL p90, ms, 50 > 30",
        ),
        ((point("draft", 1, None), point("plain", 1, 9.0)), "ITL p90, ms,: not measured"),
        ((point("draft", 1, 9.0, invalid="too many failures"),), "no load of the draft can be used"),
    ],
    ids=["no load", "never met", "met less far than alone", "not measured", "invalid"],
)
def test_missed_service_targets_hold(points: tuple[LoadPoint, ...], reason: str) -> None:
    decision = judged(rules=TARGETS, **loaded(*points))
    assert not decision.promote and reason in "\n".join(decision.against)


def test_service_targets_that_hold_or_mean_nothing_are_remarks() -> None:
    good = (point("draft", 1, 9.0), point("draft", 8, 9.0), point("plain", 1, 9.0), point("plain", 8, 99.0))
    met = judged(rules=TARGETS, **loaded(*good))
    assert met.promote and met.remarks == ("service targets are met up to concurrency 8",)
    nothing = judged(rules=TARGETS, **loaded(point("draft", 1, 50.0), meaningful=False))
    assert nothing.promote and "interpreter" in nothing.remarks[0]


def word(kind: Any, yes: bool = True) -> Word:
    return Word(kind=kind, yes=yes, by="someone", why="it was tried", at="2026-01-01T00:00:00+00:00")


def test_force_promotes_what_was_held_and_both_are_said() -> None:
    decision = judged(words=(word("force"),), lossless="different")
    assert decision.promote and decision.forced and not decision.passed
    assert "answers differ" in decision.reasons[0]
    assert "although the gate held it" in "\n".join(decision.reasons)
    assert decision.words[0].by == "someone" and "someone" not in "\n".join(decision.reasons)


def test_approval_is_waited_for_and_heard() -> None:
    asking = replace(RULES, approval=True)
    waiting = judged(rules=asking)
    assert not waiting.promote and waiting.waits and waiting.passed
    assert "waits for a person's word" in waiting.reasons[0]
    agreed = judged(rules=asking, words=(word("approval"),))
    assert agreed.promote and not agreed.waits
    refused = judged(rules=asking, words=(word("approval", yes=False),))
    assert not refused.promote and "said no" in refused.reasons[0]


def test_approval_is_no_force() -> None:
    decision = judged(rules=replace(RULES, approval=True), words=(word("approval"),), live_gap=0.5)
    assert not decision.promote and not decision.waits


def test_a_no_holds_also_where_no_word_was_asked_for() -> None:
    assert not judged(words=(word("approval", yes=False),)).promote


def test_the_newest_word_counts() -> None:
    assert judged(words=(word("approval", yes=False), word("approval"))).promote


def test_a_draft_that_was_taken_back_is_held() -> None:
    decision = judged(withdrawn="rolled back to v0001 on 2026-01-01")
    assert not decision.promote and "taken back: rolled back to v0001" in decision.against[0]
