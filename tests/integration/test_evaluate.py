"""Evaluation for real: the laptop's target with an untrained draft, replayed, then served in two arms."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from small_evaluation import evaluate_little, small_evaluation

from tasks.evaluate.models import EvaluationReport
from tasks.run_folder import RunFolder

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed; run: make setup"),
]


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> tuple[EvaluationReport, RunFolder]:
    profile = small_evaluation(arms=["plain", "plain-again", "draft"])
    return evaluate_little(profile, tmp_path_factory.mktemp("evaluate"))


def test_both_arms_answer_the_same_tokens(evaluated: tuple[EvaluationReport, RunFolder]) -> None:
    report, _ = evaluated
    assert report.lossless == "identical"
    assert [one.equal for one in report.comparisons] == [True, True]
    assert [(arm.requests, arm.failed) for arm in report.arms] == [(2, 0), (2, 0)]
    assert not any(arm.speed_is_meaningful for arm in report.arms)


def test_live_counts_what_replay_counts(evaluated: tuple[EvaluationReport, RunFolder]) -> None:
    report, _ = evaluated
    assert report.live_valid and report.left_out == ()
    assert report.common_prompts == 2
    assert report.live_gap is not None and report.live_gap < 0.05
    assert report.live.pooled.rounds > 0


def test_a_draft_against_itself_gains_nothing(evaluated: tuple[EvaluationReport, RunFolder]) -> None:
    report, _ = evaluated
    assert report.incumbent == "v1" and report.incumbent_gain is not None
    assert report.incumbent_gain.value == pytest.approx(0.0)
    assert report.replay.macro.value is not None and 1.0 <= report.replay.macro.value < 1.5


def test_no_process_is_left(evaluated: tuple[EvaluationReport, RunFolder]) -> None:
    _, run = evaluated
    assert not list(run.services.glob("*.json"))


def test_the_engine_says_the_rounds_of_each_answer(evaluated: tuple[EvaluationReport, RunFolder]) -> None:
    report, _ = evaluated
    detail = report.arms_detail
    assert detail is not None and detail.starts == 2
    assert detail.order == ("draft", "plain", "plain-again")
    draft = detail.named("draft")
    assert draft is not None and draft.counted == "by request" and draft.spread is not None
    assert not [note for note in detail.notes if "counters" in note]
    assert report.live.pooled.low is not None and report.live.pooled.high is not None


def test_every_arm_says_its_conditions(evaluated: tuple[EvaluationReport, RunFolder]) -> None:
    report, _ = evaluated
    assert report.arms_detail is not None
    draft, plain, again = report.arms_detail.arms
    assert draft.conditions is not None and plain.conditions is not None
    assert (draft.conditions.method, plain.conditions.method) == ("dspark", "none")
    assert draft.conditions.runner == plain.conditions.runner == "v2"
    assert draft.conditions.engine.startswith("vllm") and "cores" in draft.conditions.hardware
    assert draft.drift is not None and draft.drift.same_tokens
    assert again.verdict is not None and again.verdict.lossless == "identical"
