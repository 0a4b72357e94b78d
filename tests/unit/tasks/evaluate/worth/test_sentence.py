"""The first sentence, case by case."""

from __future__ import annotations

from typing import Any

import pytest
from load_sweeps import point, sweep

from tasks.evaluate.load.models import LoadPoint
from tasks.evaluate.worth.conclude import curves_of
from tasks.evaluate.worth.models import BestK, Curve, Figure, Objective
from tasks.evaluate.worth.points import usable
from tasks.evaluate.worth.sentence import Evidence, Said, say
from tasks.evaluate.worth.wording import two_digits

TAU = Figure(value=2.9, low=2.8, high=3.0)


def evidence(points: tuple[LoadPoint, ...] = (), **changes: Any) -> Evidence:
    curves = curves_of(usable(points, {})[0], 0.02, 0.90)
    values: dict[str, Any] = {
        "tau": TAU, "prompts": 108, "block_size": 7, "lossless": "identical", "compared": 36, "different": 0,
        "confidence": 0.90, "speed_is_meaningful": True, "swept": bool(points),
        "curve": next((c for c in curves if (c.arm, c.baseline) == ("draft", "plain")), None),
        "rivals": tuple(c for c in curves if c.arm == "draft" and c.baseline != "plain"),
    }  # fmt: skip
    return Evidence(**{**values, **changes})


def said(points: tuple[LoadPoint, ...] = (), **changes: Any) -> Said:
    return say(evidence(points, **changes))


def test_worth_it_up_to_and_not_above() -> None:
    found = said(sweep().points, best_k=tuple(BestK(concurrency=c, tokens=5) for c in (1, 8, 16)))
    assert found.verdict == "worth"
    assert found.sentence == (
        "WORTH IT up to concurrency 15: 2.3x [2.2, 2.4] at 1, 1.4x [1.3, 1.4] at 8; not above 19; "
        "best K 5 (measured with K 7)"
    )


def test_a_crossover_beyond_the_range_is_said() -> None:
    found = said(sweep(concurrency=(1, 2, 4)).points)
    assert found.sentence.startswith("WORTH IT up to concurrency 4, the highest measured: 2.3x")
    assert "not above" not in found.sentence and found.sentence.endswith("K 7, the only one measured")


def test_slower_everywhere_is_not_worth_it() -> None:
    found = said(sweep({"plain": None, "draft": 1.05}).points)
    assert found.verdict == "not_worth"
    assert found.sentence.startswith("not worth it: slower than without a draft at concurrency 1 to 32, 0.8")


def test_undecided_names_what_these_prompts_can_show_and_how_many_more_would_settle_it() -> None:
    points = (point("plain", 1), point("draft", 1, 1.31))
    found = said(points)
    assert found.verdict == "undecided" and found.power is not None
    assert found.sentence.startswith(
        "undecided: 1.03x [1.00, 1.07] at 1 (these 108 prompts show 1.05x or more; "
    )
    assert f"about {two_digits(found.power.more_prompts or 0):,} more would settle 1.03x" in found.sentence


def test_a_rate_that_no_prompts_would_settle() -> None:
    even = point("plain", 1).output_tokens_per_s
    found = said((point("plain", 1), point("draft", 1, 1.3, output_tokens_per_s=even)))
    assert "no sensible number of prompts would settle so small a difference" in found.sentence


def test_without_any_interval_it_stays_open() -> None:
    curve = curves_of(usable((point("plain", 1), point("draft", 1, 2.9)), {})[0], None, 0.90)[0]
    found = said(curve=curve)
    assert found.sentence == (
        "undecided: 2.3x at 1; without an interval, since no point was measured twice and acceptance has none"
    )


def test_ngram_may_be_the_right_answer() -> None:
    found = said(sweep({"plain": None, "draft": 1.8, "ngram": 2.9}).points)
    assert found.verdict == "not_worth"
    assert found.sentence.startswith("not worth it: arm ngram, which needs no training, is faster; the draft")
    even = said(sweep({"plain": None, "draft": 2.9, "ngram": 2.9}).points)
    assert even.verdict == "worth" and "; against ngram only " in even.sentence


def test_a_faster_incumbent_is_named() -> None:
    found = said(sweep({"plain": None, "draft": 2.9, "incumbent": 2.88}).points, incumbent="v0003")
    assert "; against the incumbent v0003 only " in found.sentence


def targets(draft: bool, plain: bool) -> tuple[Objective, ...]:
    return tuple(
        Objective(arm=arm, concurrency=c, met=met and c < 8)
        for arm, met in (("draft", draft), ("plain", plain))
        for c in (1, 2, 4, 8)
    )


def test_targets_bound_the_sentence() -> None:
    points = sweep(concurrency=(1, 2, 4, 8)).points
    assert (
        "; meets the profile's targets up to 4 (4 without)"
        in said(points, objectives=targets(True, True)).sentence
    )
    assert (
        "; misses the profile's targets at every concurrency measured (nowhere without)"
        in said(points, objectives=targets(False, False)).sentence
    )
    missed = said(points, objectives=targets(False, True))
    assert missed.verdict == "not_worth" and "misses the targets that are met without it" in missed.sentence


def test_acceptance_alone_is_all_that_is_said_without_a_load_sweep() -> None:
    found = said(speed_is_meaningful=False)
    assert found.verdict == "acceptance_only"
    assert found.sentence == (
        "acceptance only: 2.90 [2.80, 3.00] tokens per step with K 7; it pays where a step costs less than "
        "2.80 steps without a draft; speed is not known (Triton's interpreter)"
    )
    assert "no point of the load sweep can be used" in said(swept=True).sentence


def test_another_arm_that_yields_more_is_named() -> None:
    arms = {"ngram": Figure(value=3.29), "suffix": Figure(value=3.1), "mtp": Figure()}
    better = said(speed_is_meaningful=False, others=arms, live=Figure(value=2.85))
    named = ", less than ngram, which needs no training (2.85 against 3.29 on the same prompts); it pays"
    assert named in better.sentence
    worse = said(speed_is_meaningful=False, others=arms, live=Figure(value=3.3))
    unknown = said(speed_is_meaningful=False, others=arms)
    own = said(speed_is_meaningful=False, others={"old": Figure(value=3.0)}, live=Figure(value=2.85))
    assert ", less than old (2.85 against 3.00 on the same prompts); it pays" in own.sentence
    assert "ngram" not in worse.sentence + unknown.sentence


@pytest.mark.parametrize(
    ("gain", "part"),
    [
        (Figure(value=0.21, low=0.15, high=0.27), ", +0.21 [0.15, 0.27] over v0003;"),
        (
            Figure(value=-0.02, low=-0.07, high=0.03),
            ", undecided against v0003: -0.02 [-0.07, 0.03] (these 108 prompts show 0.08 or more; ",
        ),
        (Figure(value=-0.2, low=-0.3, high=-0.1), ", less than v0003 (-0.20 [-0.30, -0.10]);"),
        (
            Figure(value=0.02, low=-0.03, high=0.07),
            ", undecided against v0003: +0.02 [-0.03, 0.07] (these 108 prompts show 0.08 or more; ",
        ),
    ],
    ids=["more", "open below", "less", "open"],
)
def test_the_incumbent_is_compared_by_pairs(gain: Figure, part: str) -> None:
    sentence = said(incumbent="v0003", gain=gain).sentence
    assert part in sentence
    more = f"about 1,500 more would settle {gain.value:+.2f});"
    assert (more in sentence) == ("undecided" in part)


@pytest.mark.parametrize(
    ("changes", "verdict", "part"),
    [
        ({"tau": Figure()}, "not_measured", "no drafts were observed"),
        ({"compared": 0}, "undecided", "losslessness is not shown"),
        ({"lossless": "different", "different": 3}, "not_worth", "3 of 36 answers differ"),
        ({"tau": Figure(value=1.0, low=1.0, high=1.0)}, "not_worth", "no draft token was accepted"),
    ],
    ids=["nothing drafted", "nothing compared", "wrong answers", "nothing accepted"],
)
def test_some_facts_overrule_every_speed(changes: dict[str, Any], verdict: str, part: str) -> None:
    found = said(sweep().points, **changes)
    assert found.verdict == verdict and part in found.sentence


def test_a_loss_in_the_middle_ends_the_range() -> None:
    speeds: list[tuple[int, float]] = [(1, 200.0), (2, 80.0), (4, 200.0)]
    points = tuple(
        point(arm, c, 2.0 if arm == "draft" else None, output_tokens_per_s=v if arm == "draft" else 100.0)
        for arm in ("plain", "draft")
        for c, v in speeds
    )
    found = said(points)
    assert found.sentence.startswith("WORTH IT up to concurrency 1: 2.0x [1.9, 2.1] at 1; not at 2;")


def test_a_range_that_begins_higher_up() -> None:
    curve: Curve = curves_of(
        usable(
            tuple(
                point(arm, c, 2.0 if arm == "draft" else None, output_tokens_per_s=v)
                for arm, values in (("plain", (100.0, 100.0, 100.0)), ("draft", (99.0, 150.0, 150.0)))
                for c, v in zip((1, 2, 4), values, strict=True)
            ),
            {},
        )[0],
        0.02,
        0.90,
    )[0]
    assert said(curve=curve).sentence.startswith(
        "WORTH IT from concurrency 2, up to concurrency 4, the highest measured: 1.5x"
    )
