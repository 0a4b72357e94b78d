"""Every arm on real engines, and a server that accepts what it should not: `make verify PART=arms`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from small_evaluation import evaluate_little, small_evaluation

from tasks.evaluate.arm_models import ArmDetail
from tasks.evaluate.models import ArmsDetail, EvaluationReport

pytestmark = [pytest.mark.verify("arms"), pytest.mark.timeout(1800)]
Record = Callable[[str, object], None]
# vLLM's own way to accept every drafted token, whatever the target thinks of it.
ACCEPTS_ALL = {
    "method": "dspark",
    "model": "{draft}",
    "num_speculative_tokens": 4,
    "rejection_sample_method": "synthetic",
    "synthetic_acceptance_length": 5,
}


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> EvaluationReport:
    profile = small_evaluation(
        own_arms={
            "accepts-all": {"speculative_config": ACCEPTS_ALL},
            "no-such-method": {"speculative_config": {"method": "guesswork", "num_speculative_tokens": 2}},
        },
        repetitions=2,
        sampled={"prompts": 2, "samples": 32, "tokens": 2, "permutations": 499},
    )
    return evaluate_little(profile, tmp_path_factory.mktemp("arms"))[0]


def arm(report: EvaluationReport, name: str) -> ArmDetail:
    detail = report.arms_detail
    found = detail.named(name) if isinstance(detail, ArmsDetail) else None
    assert found is not None
    return found


def test_a_server_that_accepts_every_draft_token_is_different(
    evaluated: EvaluationReport, record_property: Record
) -> None:
    """A server that accepts every draft token is `different`, and its samples are of another distribution."""
    wrong = arm(evaluated, "accepts-all")
    assert wrong.verdict is not None and wrong.acceptance is not None and wrong.distribution is not None
    assert wrong.acceptance.pooled.value == 5.0
    assert wrong.verdict.lossless == "different" and wrong.verdict.violations == 2
    assert wrong.distribution.differs
    record_property("violations", f"{wrong.verdict.violations} of {wrong.verdict.compared}")
    record_property("p_value", wrong.distribution.p_value)


def test_a_sound_draft_is_identical(evaluated: EvaluationReport, record_property: Record) -> None:
    """The draft and n-gram decoding give the target's own answers, greedy and sampled."""
    draft = arm(evaluated, "draft")
    assert draft.verdict is not None and draft.verdict.lossless == "identical"
    assert draft.distribution is not None and not draft.distribution.differs
    assert draft.repetitions == 2 and draft.unsteady == ()
    ngram = arm(evaluated, "ngram")
    assert ngram.status == "measured" and ngram.verdict is not None and ngram.verdict.violations == 0
    assert ngram.verdict.lossless is None and "runner: v1 / v2" in ngram.verdict.reason
    record_property("p_value", draft.distribution.p_value)
    record_property("detectable", draft.distribution.detectable)


def test_arms_that_cannot_be_had_are_named(evaluated: EvaluationReport) -> None:
    """An arm that the engine refuses costs itself; what is not installed is named; each arm starts once."""
    assert evaluated.arms_detail is not None
    assert arm(evaluated, "suffix").status == arm(evaluated, "mtp").status == "not available"
    refused = arm(evaluated, "no-such-method")
    assert refused.status == "failed" and refused.reason
    assert evaluated.arms_detail.starts == 6
    assert evaluated.lossless == "identical" and evaluated.live_valid
