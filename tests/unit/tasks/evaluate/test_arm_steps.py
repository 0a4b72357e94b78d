"""Tokens per step: what arms of different methods are compared by, from responses and from counters alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from speculating import measure, small_profile, threaded
from speculating_engine import Engine

from tasks.evaluate.arm_record import ArmRecord, DomainCounts
from tasks.evaluate.arm_steps import tokens_per_step
from tasks.execute import numbers
from tasks.measure.acceptance import decoding_steps
from tasks.measure.intervals import Bootstrap

HOW = Bootstrap(200, 0.9, 0)
MOST = 40


def sparse(tmp_path: Path) -> tuple[ArmRecord, float, dict[str, str]]:
    """An arm that drafts in every third step: its record, its true tokens per step, domains of prompts."""
    work = threaded(tmp_path, small_profile({"max_new_tokens": MOST, "arms": ["plain", "draft", "ngram"]}),
                    ngram=("sparse", 0))  # fmt: skip
    found, _ = measure(work)
    engine = Engine("sparse", 4, 0)
    told = [engine.answer(prompt.token_ids, MOST, None) for prompt in work.prompts]
    accepted, steps = sum(sum(one["rounds"]) for one in told), sum(one["steps"] for one in told)
    return found.records["ngram"], 1 + accepted / steps, {one.prompt_id: one.domain for one in work.prompts}


def test_steps_without_a_draft_count_as_one_token(tmp_path: Path) -> None:
    record, truth, domain_of = sparse(tmp_path)
    found = tokens_per_step(record, domain_of, HOW)
    # A last round may accept more than its answer took, which hides a step or two.
    assert found is not None and found.pooled.value == pytest.approx(truth, abs=0.01)
    assert found.macro.low is not None and found.macro.high is not None
    rounds = sum(counts.rounds for counts in record.domains.values())
    per_round = 1 + sum(counts.accepted for counts in record.domains.values()) / rounds
    assert per_round > (found.pooled.value or 0.0) + 0.5


def test_counters_alone_give_the_same_without_intervals(tmp_path: Path) -> None:
    record, truth, domain_of = sparse(tmp_path)
    silent = {name: one.model_copy(update={"acceptance": None}) for name, one in record.answers.items()}
    found = tokens_per_step(record.model_copy(update={"answers": silent}), domain_of, HOW)
    assert found is not None and found.macro.low is None and found.pooled.low is None
    assert found.pooled.value == pytest.approx(truth, abs=0.03) and set(found.domains) == set(record.domains)


def test_an_arm_that_drafts_in_every_step_has_its_acceptance_length(tmp_path: Path) -> None:
    _, detail = measure(threaded(tmp_path, small_profile()))
    draft, plain = detail.named("draft"), detail.named("plain")
    assert draft is not None and draft.tokens_per_step is not None and draft.acceptance is not None
    assert draft.tokens_per_step.pooled.value == pytest.approx(draft.acceptance.pooled.value)
    assert plain is not None and plain.tokens_per_step is not None
    assert plain.tokens_per_step.macro.value == 1.0 and plain.acceptance is None
    tracked = numbers(detail.model_dump(mode="json"))
    assert tracked["tokens_per_step/draft"] == draft.tokens_per_step.macro.value
    assert tracked["tokens_per_step/plain"] == 1.0 and "tau_per_drafted_round/plain" not in tracked
    assert tracked["tau_per_drafted_round/draft"] == draft.acceptance.macro.value


def counted(**changes: object) -> DomainCounts:
    values = {"rounds": 4, "accepted": 6, "draft_tokens": 16, "per_position": (3, 2, 1, 0), "generated": 22,
              "answered": 22, "requests": 3, "failed": 1}  # fmt: skip
    return DomainCounts.model_validate({**values, **changes})


def record_of(**domains: DomainCounts) -> ArmRecord:
    return ArmRecord(name="ngram", fingerprint="", argv=(), engine="fake", answers={}, domains=domains,
                     speculates=True, seconds=1.0)  # fmt: skip


def test_steps_follow_from_tokens_answers_and_accepted() -> None:
    assert decoding_steps(tokens=22, answers=2, rounds=4, accepted=6) == 14
    assert decoding_steps(tokens=6, answers=1, rounds=2, accepted=4) == 2, "a last round accepted too much"
    domains = record_of(qa=counted(), code=counted(invalid="x")).model_dump()
    answers = {"a": {"prompt_id": "a", "token_ids": (1, 2)}}
    found = tokens_per_step(ArmRecord.model_validate({**domains, "answers": answers}), {"a": "qa"}, HOW)
    assert found is not None and set(found.domains) == {"qa"}
    assert found.macro.value == pytest.approx(20 / 14) and found.pooled.rounds == 14


def test_a_domain_without_drafts_counts_and_an_arm_without_any_has_no_value() -> None:
    nothing = counted(rounds=0, accepted=0, draft_tokens=0)
    answers = {"a": {"prompt_id": "a", "token_ids": (1, 2)}}
    both = record_of(qa=counted(), code=nothing).model_dump()
    some = tokens_per_step(ArmRecord.model_validate({**both, "answers": answers}), {"a": "qa"}, HOW)
    assert some is not None and some.domains["code"].value == 1.0
    assert some.macro.value == pytest.approx((1 + 20 / 14) / 2)
    none = record_of(qa=nothing).model_dump()
    assert tokens_per_step(ArmRecord.model_validate({**none, "answers": answers}), {"a": "qa"}, HOW) is None
