"""Assembly of the report: gap, verdict, failures, empty and invalid measurements."""

from __future__ import annotations

from typing import Any

import pytest

from profiles.schema import Profile
from tasks.evaluate.assemble import ReplayRow, agreement
from tasks.evaluate.core import live_prompts
from tasks.evaluate.live import Answer, ArmRecord, DomainCounts
from tasks.evaluate.models import EvaluationReport
from tasks.evaluate.report import build_report
from tasks.evaluate.walk import walk

LENGTH, LIVE = 12, 8
ANSWER = tuple(range(100, 100 + LENGTH))


def profile(**live: Any) -> Profile:
    settings = {"max_new_tokens": LIVE, "per_domain": 2, **live}
    return Profile.model_validate(
        {
            "name": "t",
            "target": {"model": "m", "aux_layer_ids": [1]},
            "evaluate": {"replay_max_new_tokens": LENGTH, "live": settings, "bootstrap_samples": 200},
        }
    )


def row(prompt_id: str, domain: str, right: int, answer: tuple[int, ...] = ANSWER) -> ReplayRow:
    """A replayed prompt whose draft has `right` correct tokens in every block of 4."""
    drafted = [
        [answer[i + 1 + k] if k < right and i + 1 + k < len(answer) else -1 for k in range(4)]
        for i in range(len(answer) - 1)
    ]
    walks = {}
    for length in (LENGTH, LIVE):
        counts = walk(drafted, answer, length).counts
        walks[str(length)] = {
            "rounds": counts.rounds,
            "accepted": counts.accepted,
            "per_position": counts.per_position,
        }
    return ReplayRow(prompt_id, domain, (1, 2, 3), answer, walks)


ROWS = [row("a1", "a", 1), row("a2", "a", 1), row("b1", "b", 3), row("b2", "b", 0), row("b3", "b", 2)]
ASKED = ("a1", "a2", "b1", "b2")


def arm(name: str, speculates: bool = True, **changed: Answer) -> ArmRecord:
    """An arm that answers as the log says and counts exactly what replay counts."""
    answers = {
        r.prompt_id: Answer(prompt_id=r.prompt_id, token_ids=r.answer_ids[:LIVE], finish_reason="length")
        for r in ROWS
        if r.prompt_id in ASKED
    }
    domains = {}
    for domain in ("a", "b"):
        counts = [r.counts(LIVE) for r in ROWS if r.domain == domain and r.prompt_id in ASKED]
        domains[domain] = DomainCounts(
            rounds=sum(c.rounds for c in counts) if speculates else 0,
            accepted=sum(c.accepted for c in counts) if speculates else 0,
            draft_tokens=4 * sum(c.rounds for c in counts) if speculates else 0,
            per_position=tuple(sum(c.per_position[i] for c in counts) for i in range(4))
            if speculates
            else (),
            generated=16,
            answered=16,
        )
    return ArmRecord(
        name=name,
        fingerprint="f",
        argv=("python",),
        engine="e",
        answers={**answers, **changed},
        domains=domains,
        speculates=speculates,
        seconds=1.0,
    )


def report(plain: ArmRecord, draft: ArmRecord, rows: list[ReplayRow] = ROWS, **live: Any) -> EvaluationReport:
    return build_report(
        profile(**live),
        rows=rows,
        plain=plain,
        draft=draft,
        block_size=4,
        incumbent=None,
        incumbent_rows=None,
    )


def test_live_and_replay_that_agree_leave_no_gap() -> None:
    done = report(arm("plain", speculates=False), arm("draft"))
    assert done.lossless == "identical"
    assert done.live_gap == pytest.approx(0.0)
    assert done.common_prompts == 4 and done.left_out == ()
    assert done.live.pooled.value == done.common_replay_pooled
    assert done.live.domains["a"].prompts == 2
    assert done.replay.domains["b"].prompts == 3
    assert done.replay.domains["a"].value == 2.0
    assert done.live_valid and done.notes == ()


def test_macro_is_the_mean_over_domains() -> None:
    done = report(arm("plain", speculates=False), arm("draft"))
    values = [one.value or 0.0 for one in done.replay.domains.values()]
    assert done.replay.macro.value == pytest.approx(sum(values) / 2)
    assert done.replay.macro.low is not None and done.replay.macro.high is not None
    assert done.live.macro.value == pytest.approx(
        sum(one.value or 0.0 for one in done.live.domains.values()) / 2
    )


def test_one_different_token_in_float32_is_different_and_leaves_the_domain_out() -> None:
    wrong = Answer(prompt_id="b1", token_ids=(*ANSWER[:5], 7, *ANSWER[6:LIVE]))
    done = report(arm("plain", speculates=False), arm("draft", b1=wrong))
    assert done.lossless == "different"
    different = next(one for one in done.comparisons if not one.equal)
    assert (different.prompt_id, different.first_difference, different.tie) == ("b1", 5, None)
    assert (different.plain_token, different.arm_token) == (ANSWER[5], 7)
    assert done.left_out == ("b1",)
    assert done.common_prompts == 2
    assert any("b1" in note for note in done.notes)


def test_a_shorter_answer_is_a_difference() -> None:
    short = Answer(prompt_id="a1", token_ids=ANSWER[:3])
    assert report(arm("plain", speculates=False), arm("draft", a1=short)).lossless == "different"


def test_failures_are_counted_and_make_live_invalid() -> None:
    done = report(arm("plain", speculates=False), arm("draft", a1=Answer(prompt_id="a1", error="HTTP 500")))
    assert not done.live_valid
    assert done.live.pooled.value is None and done.live_gap is None
    assert done.arms[1].failed == 1 and done.arms[1].requests == 4
    assert any("1 of 4 requests failed" in note for note in done.notes)
    assert done.replay.macro.value is not None


def test_failures_within_the_limit_leave_the_other_domains() -> None:
    failed = arm("draft", a1=Answer(prompt_id="a1", error="HTTP 500"))
    done = report(arm("plain", speculates=False), failed, max_failed=0.5)
    assert done.live.pooled.value is not None
    assert done.left_out == ("a1",) and done.common_prompts == 2


def test_a_domain_above_the_failure_limit_is_invalid_and_the_others_count() -> None:
    draft = arm("draft")
    broken = draft.domains["a"].model_copy(update={"requests": 2, "failed": 2})
    done = report(
        arm("plain", speculates=False),
        draft.model_copy(update={"domains": {**draft.domains, "a": broken}}),
        max_failed=0.5,
    )
    assert done.live.domains["a"].value is None and done.live.domains["b"].value is not None
    assert not done.live_valid
    assert "live a: 2 of 2 requests failed, the limit is 50%" in done.notes


def test_no_drafts_is_its_own_outcome() -> None:
    done = report(arm("plain", speculates=False), arm("draft", speculates=False))
    assert done.live.pooled.value is None and done.live.macro.value is None
    assert done.live_gap is None and not done.live_valid
    assert any("no drafts observed" in note for note in done.notes)


def test_a_domain_of_one_token_answers_is_reported_as_empty() -> None:
    rows = [*ROWS, row("c1", "c", 1, answer=(5,))]
    done = report(arm("plain", speculates=False), arm("draft"), rows)
    assert done.replay.domains["c"].value is None
    assert done.replay.domains["c"].prompts == 1
    assert any(note.startswith("replay c: nothing was drafted") for note in done.notes)
    assert "NaN" not in done.model_dump_json()


def test_a_restarted_server_makes_its_domain_invalid() -> None:
    draft = arm("draft")
    broken = draft.domains["a"].model_copy(update={"invalid": "counter fell"})
    done = report(
        arm("plain", speculates=False),
        draft.model_copy(update={"domains": {**draft.domains, "a": broken}}),
    )
    assert done.live.domains["a"].value is None
    assert done.live.domains["b"].value is not None
    assert not done.live_valid
    assert done.common_prompts == 2


def test_repetition_that_only_the_draft_arm_shows_is_different() -> None:
    words = tuple(range(LIVE)) + tuple(range(200, 240))
    loop = tuple(range(LIVE)) + (5, 6) * 20
    plain = arm("plain", speculates=False, a1=Answer(prompt_id="a1", token_ids=words))
    done = report(plain, arm("draft", a1=Answer(prompt_id="a1", token_ids=loop)), dtype="bfloat16")
    assert done.lossless == "different"
    assert any("repetition" in note for note in done.notes)


def said_by_request(draft: ArmRecord) -> ArmRecord:
    """The same arm on a server that says the rounds of each answer."""
    answers = dict(draft.answers)
    for r in ROWS:
        if r.prompt_id in answers:
            counts = r.counts(LIVE)
            reached = (counts.rounds, *counts.per_position)
            exactly = [here - beyond for here, beyond in zip(reached, (*reached[1:], 0), strict=True)]
            answers[r.prompt_id] = answers[r.prompt_id].model_copy(update={"acceptance": tuple(exactly)})
    return draft.model_copy(update={"answers": answers})


def test_rounds_of_each_answer_give_live_intervals() -> None:
    done = report(arm("plain", speculates=False), said_by_request(arm("draft")))
    without = report(arm("plain", speculates=False), arm("draft"))
    for name in ("macro", "pooled"):
        with_bounds, bare = getattr(done.live, name), getattr(without.live, name)
        assert with_bounds.value == bare.value and bare.low is None
        assert with_bounds.low <= with_bounds.value <= with_bounds.high
    assert done.live.domains["b"].low < done.live.domains["b"].high  # type: ignore[operator]
    assert done.live_gap == pytest.approx(0.0)


def test_with_rounds_of_each_answer_only_the_differing_prompt_is_left_out() -> None:
    wrong = Answer(prompt_id="b1", token_ids=(*ANSWER[:5], 7, *ANSWER[6:LIVE]))
    done = report(arm("plain", speculates=False), said_by_request(arm("draft", b1=wrong)))
    assert done.left_out == ("b1",) and done.common_prompts == 3
    assert done.live_gap == pytest.approx(0.0)


def test_a_gap_above_the_limit_is_said() -> None:
    draft = arm("draft")
    more = draft.domains["b"].model_copy(update={"accepted": draft.domains["b"].accepted + 5})
    found = agreement(draft.model_copy(update={"domains": {**draft.domains, "b": more}}), ROWS, LIVE, True)
    assert found.gap is not None and found.gap > 0.05


def test_the_incumbent_is_compared_by_pairs() -> None:
    better = [row(r.prompt_id, r.domain, 4) for r in ROWS]
    done = build_report(
        profile(),
        rows=better,
        plain=arm("plain", speculates=False),
        draft=arm("draft"),
        block_size=4,
        incumbent="v3",
        incumbent_rows=ROWS,
    )
    assert done.incumbent == "v3" and done.incumbent_replay is not None
    assert done.incumbent_gain is not None and done.incumbent_gain.low is not None
    assert done.incumbent_gain.low > 0


def test_live_asks_the_first_prompts_of_each_domain_one_domain_after_another() -> None:
    mixed = [ROWS[2], ROWS[0], ROWS[3], ROWS[1], ROWS[4]]
    asked = live_prompts(mixed, 2)
    assert [prompt.prompt_id for prompt in asked] == ["b1", "b2", "a1", "a2"]
    assert asked[0].token_ids == (1, 2, 3)
