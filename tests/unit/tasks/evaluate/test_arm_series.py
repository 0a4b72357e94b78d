"""All arms of an evaluation on fake engines that speak the protocol."""

from __future__ import annotations

from pathlib import Path

import pytest
from speculating import DOMAINS, FakeEngines, measure, small_profile, threaded

from profiles.evaluation import KNOWN_ARMS
from tasks.errors import ServiceError
from tasks.evaluate.arm_plan import DraftFolder
from tasks.evaluate.arms import ArmsWork
from tasks.execute import numbers

ONE_TOKEN = {"max_new_tokens": 1}


def test_each_arm_costs_one_start_and_the_target_alone_is_last(tmp_path: Path) -> None:
    own = {"two-at-once": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}}
    work = threaded(tmp_path, small_profile({"arms": KNOWN_ARMS, "own_arms": own, "again_per_domain": 1}))
    found, detail = measure(work, DraftFolder(tmp_path, {"model.safetensors": "bb"}))
    assert work.served == ["draft", "incumbent", "ngram", "two-at-once", "plain"]
    assert detail.starts == 5
    assert detail.order == ("draft", "incumbent", "ngram", "two-at-once", "plain", "plain-again")
    missing = {arm.name: arm.reason for arm in detail.arms if arm.status == "not available"}
    assert set(missing) == {"suffix", "mtp"} and all(missing.values())
    said = [note for note in detail.notes if "not available" not in note and "same requests" not in note]
    apart = " not comparable: runner: v1 / v2; interpreter: False / True"
    assert [note.partition(":")[2] for note in said] == [apart] * 2
    assert len(found.records["plain-again"].answers) == len(DOMAINS)


def test_a_sound_draft_is_identical_and_has_intervals(tmp_path: Path) -> None:
    found, detail = measure(threaded(tmp_path, small_profile()))
    draft = detail.named("draft")
    assert draft is not None and draft.verdict is not None and draft.acceptance is not None
    assert draft.verdict.lossless == "identical" and draft.verdict.exact == 12
    assert found.rulings == {}
    tau = draft.acceptance.macro
    assert tau.value is not None and tau.low is not None and tau.high is not None
    assert 1.0 < tau.low <= tau.value <= tau.high
    assert draft.counted == "by request" and draft.spread is not None and draft.spread.answers == 12
    rates = draft.acceptance.pooled.per_position
    assert list(rates) == sorted(rates, reverse=True) and len(rates) == 4
    assert [note for note in detail.notes if "same requests" not in note] == []


@pytest.mark.parametrize("draft", ["accept-all", "wrong-token", "loops"])
def test_a_server_that_changes_the_answers_is_different(tmp_path: Path, draft: str) -> None:
    found, detail = measure(threaded(tmp_path, small_profile({"max_new_tokens": 44}), draft=(draft, 0)))
    arm = detail.named("draft")
    assert arm is not None and arm.verdict is not None
    assert arm.verdict.lossless == "different" and arm.verdict.violations > 0
    if draft == "wrong-token":
        first = arm.verdict.differing[0]
        assert (first.prompt_number, first.prompt_id, first.first_difference) == (1, "code-0", 3)
        assert first.arm_token == 99 and first.plain_token == found.plain.answers["code-0"].token_ids[3]
        assert (first.plain_logprob, first.arm_logprob, first.tie) == (-0.2, -12.0, False)
        assert arm.verdict.violations == 3 and arm.verdict.exact == 9
    if draft == "loops":
        assert len(arm.verdict.decayed) == 12


def test_a_token_that_is_as_likely_is_a_tie(tmp_path: Path) -> None:
    _, detail = measure(threaded(tmp_path, small_profile(), draft=("ties", 0)))
    arm = detail.named("draft")
    assert arm is not None and arm.verdict is not None
    assert arm.verdict.ties > 0 and arm.verdict.violations == 0
    assert arm.verdict.lossless == "within_noise"


def test_the_target_alone_that_is_noisy_shows_in_a_a(tmp_path: Path) -> None:
    profile = small_profile({"arms": ["plain", "plain-again", "draft"], "again_per_domain": None})
    _, detail = measure(threaded(tmp_path, profile, plain=("noisy", 0)))
    again = detail.named("plain-again")
    assert again is not None and again.verdict is not None and again.starts == 0
    assert again.verdict.ties > 0 and again.verdict.violations == 0


def test_failures_are_counted_by_domain_and_make_the_arm_invalid(tmp_path: Path) -> None:
    """FC-039."""
    _, detail = measure(threaded(tmp_path, small_profile(), per_domain=8, draft=("fails", 0)))
    arm = detail.named("draft")
    assert arm is not None and arm.status == "invalid" and "requests failed" in arm.reason
    assert arm.failed == sum(one.failed for one in arm.domains.values()) > 0
    assert all(one.requests == 8 for one in arm.domains.values())
    assert {one.outcome for one in arm.domains.values()} == {"invalid"}
    assert arm.acceptance is not None and arm.acceptance.macro.value is None
    tracked = numbers(detail.model_dump(mode="json"))
    assert tracked["requests/draft/qa"] == 8 and tracked["failures/draft/qa"] == arm.domains["qa"].failed
    assert "tokens_per_step/draft" not in tracked and tracked["failures/plain/qa"] == 0
    plain = detail.named("plain")
    assert plain is not None and plain.status == "measured"


def test_the_same_server_is_sound_at_concurrency_one(tmp_path: Path) -> None:
    """FC-039: another level still counts."""
    profile = small_profile({"concurrency": 1})
    _, detail = measure(threaded(tmp_path, profile, per_domain=2, draft=("fails", 0)))
    arm = detail.named("draft")
    assert arm is not None and arm.status == "measured" and arm.failed == 0


@pytest.mark.parametrize(("live", "fault"), [({}, "no-drafts"), (ONE_TOKEN, "none")])
def test_no_drafts_is_an_outcome_of_its_own(tmp_path: Path, live: dict[str, int], fault: str) -> None:
    """FC-040: speculation that drafts nothing, and answers of one token."""
    _, detail = measure(threaded(tmp_path, small_profile(live), per_domain=2, draft=(fault, 0)))
    arm = detail.named("draft")
    assert arm is not None and arm.acceptance is not None
    assert {one.outcome for one in arm.domains.values()} == {"no drafts observed"}
    assert arm.acceptance.macro.value is None and arm.acceptance.pooled.value is None
    assert "NaN" not in detail.model_dump_json()


def test_a_domain_without_prompts_is_named(tmp_path: Path) -> None:
    """FC-040."""
    work = threaded(tmp_path, small_profile(), per_domain=1)
    object.__setattr__(work, "prompts", [one for one in work.prompts if one.domain != "qa"])
    _, detail = measure(work)
    assert detail.empty_domains == ("qa",)


def test_counters_that_fall_have_their_domain_measured_again(tmp_path: Path) -> None:
    """FC-041: two engines, counters that start high, one restart in the second domain."""
    sound = measure(threaded(tmp_path / "a", small_profile()))[0].records["draft"]
    found, detail = measure(threaded(tmp_path / "b", small_profile(), draft=("restarts", 8)))
    arm = detail.named("draft")
    assert arm is not None
    assert [one.measured_again for one in arm.domains.values()] == [False, True, False]
    assert found.records["draft"].domains["qa"].rounds == sound.domains["qa"].rounds
    assert found.records["draft"].domains["writing"] == sound.domains["writing"]
    assert {one.outcome for one in arm.domains.values()} == {"measured"}


def test_counters_that_keep_falling_make_the_domain_invalid(tmp_path: Path) -> None:
    """FC-041."""
    _, detail = measure(threaded(tmp_path, small_profile(), draft=("falls", 9)))
    arm = detail.named("draft")
    assert arm is not None and arm.acceptance is not None
    assert [one.outcome for one in arm.domains.values()] == ["measured", "invalid", "invalid"]
    assert arm.acceptance.domains["code"].value is not None
    assert arm.acceptance.domains["qa"].value is None


def test_tokens_of_another_client_make_a_domain_invalid(tmp_path: Path) -> None:
    _, detail = measure(threaded(tmp_path, small_profile(), draft=("foreign", 8)))
    arm = detail.named("draft")
    assert arm is not None
    assert [one.outcome for one in arm.domains.values()] == ["measured", "invalid", "invalid"]
    assert "another client" in arm.domains["qa"].reason


def test_a_server_that_says_nothing_by_request_has_no_intervals(tmp_path: Path) -> None:
    _, detail = measure(threaded(tmp_path, small_profile(), draft=("silent", 0)))
    arm = detail.named("draft")
    assert arm is not None and arm.acceptance is not None
    assert arm.counted == "by domain" and arm.acceptance.macro.value is not None
    assert arm.acceptance.macro.low is None
    assert arm.tokens_per_step is not None and arm.tokens_per_step.macro.low is None
    assert any("no intervals" in note for note in detail.notes)


def test_responses_that_do_not_add_up_to_the_counters_are_named(tmp_path: Path) -> None:
    _, detail = measure(threaded(tmp_path, small_profile(), draft=("miscounts", 0)))
    assert any("the counters" in note and "code" in note for note in detail.notes)


def test_repetitions_rotate_the_domains_and_cost_no_start(tmp_path: Path) -> None:
    work = threaded(tmp_path, small_profile({"repetitions": 3}), draft=("noisy", 0))
    found, detail = measure(work)
    record = found.records["draft"]
    assert [again.order[0] for again in record.further] == ["qa", "writing"]
    arm = detail.named("draft")
    assert arm is not None and arm.repetitions == 3 and arm.starts == 1
    assert arm.acceptance is not None and arm.acceptance.domains["qa"].prompts == 4


def test_what_was_measured_is_reused_and_only_the_rest_is_asked(tmp_path: Path) -> None:
    profile = small_profile({"arms": ["plain", "plain-again", "draft"], "again_per_domain": 1})
    work = threaded(tmp_path, profile, draft=("ties", 0))
    _, first = measure(work)
    again, second = measure(work)
    assert work.served == ["draft", "plain"] and second.starts == first.starts == 2
    assert again.reused == {"draft", "plain", "plain-again"}
    assert [arm.verdict for arm in second.arms] == [arm.verdict for arm in first.arms]
    (work.folder / "rulings.json").write_text("{half")
    _, third = measure(work)
    assert work.served[2:] == ["plain"] and third.starts == 3
    assert [arm.verdict for arm in third.arms] == [arm.verdict for arm in first.arms]


def test_sampled_continuations_are_compared(tmp_path: Path) -> None:
    live = {"sampled": {"prompts": 3, "samples": 48, "tokens": 2, "permutations": 199}}
    _, sound = measure(threaded(tmp_path / "a", small_profile(live)))
    _, wrong = measure(threaded(tmp_path / "b", small_profile(live), draft=("accept-all", 0)))
    for detail, differs in ((sound, False), (wrong, True)):
        arm = detail.named("draft")
        assert arm is not None and arm.distribution is not None
        assert arm.distribution.differs is differs
        assert (arm.distribution.prompts, arm.distribution.samples) == (3, 48)


def processes(work: ArmsWork, **faults: tuple[str, int]) -> tuple[ArmsWork, FakeEngines]:
    """The same work with real processes in place of threads."""
    engines = FakeEngines(faults)
    own = {name: getattr(work, name) for name in ArmsWork.__dataclass_fields__}
    return ArmsWork(**{**own, "launcher": engines}), engines


@pytest.mark.parametrize(
    ("fault", "said"), [("dies", "ended with exit status 3"), ("hangs", "made no token")]
)
def test_an_optional_engine_that_fails_costs_its_arm(tmp_path: Path, fault: str, said: str) -> None:
    profile = small_profile({"arms": ["plain", "draft", "ngram"]}, stall_s=1.0)
    work, engines = processes(threaded(tmp_path, profile, per_domain=2), ngram=(fault, 5))
    _, detail = measure(work)
    ngram, plain = detail.named("ngram"), detail.named("plain")
    assert ngram is not None and ngram.status == "failed" and said in ngram.reason and ngram.starts == 1
    assert plain is not None and plain.status == "measured"
    assert engines.started == ["arm-draft", "arm-ngram", "arm-plain"]
    assert not list(work.run.services.glob("*.json"))


def test_a_required_engine_that_dies_ends_the_evaluation(tmp_path: Path) -> None:
    work, _ = processes(threaded(tmp_path, small_profile(), per_domain=2), draft=("dies", 5))
    with pytest.raises(ServiceError, match="arm-draft ended with exit status 3"):
        measure(work)
