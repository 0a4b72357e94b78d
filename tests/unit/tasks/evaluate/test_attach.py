"""Arms that run already, over real HTTP: how they are named, checked, measured, and left alone."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from loaded import QuickGenerator, loaded_server

from profiles.load import load_profile
from profiles.schema import Profile
from tasks.errors import ServiceError, StageInputError, UsageError
from tasks.evaluate.attach import ArmAddress, arms_of, pairs
from tasks.evaluate.attach_checks import attach_arms
from tasks.evaluate.attach_measure import measure_attached
from tasks.evaluate.models import EvaluationReport
from tasks.report.progress import SilentProgress
from tasks.run_folder import create_run

INFO = json.dumps(
    {
        "vllm_config": {
            "speculative_config": {"method": "dspark"},
            "model_config": {"dtype": "torch.bfloat16"},
            "scheduler_config": {"max_num_seqs": 8},
        }
    }
)


def profile_of(tmp_path: Path, **load: Any) -> Profile:
    rows = [
        {"id": f"p{i}", "domain": "qa" if i < 3 else "rag", "prompt": "word " * (i + 1)} for i in range(5)
    ]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    overrides = {
        "prompts": {"train": [], "evaluate": [str(tmp_path / "prompts.jsonl")]},
        "evaluate": {
            "live": {"max_new_tokens": 6, "triton_interpreter": False},
            "load": load or {"concurrency": []},
        },
    }
    return load_profile("laptop", overrides).profile


def measured(tmp_path: Path, profile: Profile, *addresses: ArmAddress) -> EvaluationReport:
    run = create_run(tmp_path, "run", profile)
    folder = run.path / "05-evaluate"
    folder.mkdir(exist_ok=True)
    arms = attach_arms(profile, addresses)
    return measure_attached(profile, run, folder, arms, QuickGenerator(), SilentProgress())


def test_arms_are_named_checked_and_put_in_order() -> None:
    arms = arms_of({"draft": "http://b:1/v1/", "none": "https://a:2"}, {"draft": "DRAFT_KEY", "*": "OTHER"})
    assert arms == (
        ArmAddress("plain", "https://a:2", "OTHER"),
        ArmAddress("draft", "http://b:1", "DRAFT_KEY"),
    )


@pytest.mark.parametrize(
    ("arms", "keys", "said"),
    [
        ({"draft": "http://b"}, {}, "an arm without a draft and another one are needed; given: draft"),
        ({"none": "http://a"}, {}, "an arm without a draft and another one are needed; given: plain"),
        ({"none": "http://a", "plain": "http://b"}, {}, "two arms have one name"),
        ({"none": "a:8000", "draft": "http://b"}, {}, "this is not the base URL"),
        ({"none": "http://me:pw@a", "draft": "http://b"}, {}, "a URL with a password"),
        ({"none": "http://a", "Bad Name": "http://b"}, {}, "cannot be an arm's name"),
        ({"none": "http://a", "draft": "http://b"}, {"drat": "X"}, "there is no arm 'drat'"),
        ({"none": "http://a", "draft": "http://b"}, {"draft": "sk-1234"}, "named by an environment variable"),
    ],
)
def test_bad_arms_are_refused(arms: dict[str, str], keys: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said) as told:
        arms_of(arms, keys)
    assert "pw" not in str(told.value) and "sk-1234" not in str(told.value)


def test_pairs_are_taken_apart() -> None:
    assert pairs(("draft=http://a?b=c",), "--arm", "URL") == {"draft": "http://a?b=c"}
    for given in (("draft",), ("=x",), ("a=1", "a=2")):
        with pytest.raises(UsageError):
            pairs(given, "--arm", "URL")


def test_two_arms_are_compared_and_loaded_and_nothing_of_them_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFT_KEY", "secret-key")
    profile = profile_of(tmp_path, concurrency=[2], min_requests=4, requests_per_user=1, max_new_tokens=5)
    with (
        loaded_server() as plain,
        loaded_server("--draft", "4", "--server-info", INFO, key="secret-key") as draft,
    ):
        addresses = (ArmAddress("plain", plain.url), ArmAddress("draft", draft.url, "DRAFT_KEY"))
        report = measured(tmp_path, profile, *addresses)
        assert plain.process.poll() is None and draft.process.poll() is None
    assert report.lossless == "identical" and len(report.comparisons) == 5
    assert report.live.pooled.value == 3.0 and set(report.live.domains) == {"qa", "rag"}
    assert report.block_size == 4 and report.replay.macro.value is None
    assert report.arms_detail is not None and report.arms_detail.tokens_per_step == {
        "plain": 1.0,
        "draft": 3.0,
    }
    assert report.load is not None
    assert [(point.arm, point.tau, point.usable) for point in report.load.points] == [
        ("plain", None, True),
        ("draft", 3.0, True),
    ]
    said = " ".join(report.notes)
    assert "there is no replay" in said and "4 draft tokens (dspark)" in said
    kept = [path.read_text() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not any("secret-key" in text for text in kept)


def test_a_wrong_token_of_the_draft_is_a_difference_and_a_third_arm_is_told(tmp_path: Path) -> None:
    with ExitStack() as stack:
        servers = [
            stack.enter_context(loaded_server(*options))
            for options in ((), ("--draft", "4"), ("--draft", "2", "--wrong"))
        ]
        names = ("plain", "draft", "other")
        addresses = [ArmAddress(name, one.url) for name, one in zip(names, servers, strict=True)]
        report = measured(tmp_path, profile_of(tmp_path), *addresses)
    assert report.lossless == "identical" and [arm.name for arm in report.arms] == list(names)
    detail = report.arms_detail
    assert detail is not None and detail.order == names and detail.starts == 0
    assert detail.tokens_per_step == {"plain": 1.0, "draft": 3.0, "other": 2.0}
    verdicts = [arm.verdict.lossless if arm.verdict else None for arm in detail.arms]
    assert verdicts == [None, "identical", "different"] and detail.failures["other"] == {"qa": 0, "rag": 0}


def test_arms_have_their_conditions_as_far_as_the_servers_tell(tmp_path: Path) -> None:
    """A type that one server does not tell is not known to be the same."""
    with (
        loaded_server(
            "--server-info", json.dumps({"vllm_config": {"model_config": {"dtype": "torch.bfloat16"}}})
        ) as plain,
        loaded_server("--draft", "4", "--server-info", INFO) as draft,
    ):
        report = measured(
            tmp_path, profile_of(tmp_path), ArmAddress("plain", plain.url), ArmAddress("mine", draft.url)
        )
    assert report.arms_detail is not None and report.decided == "mine"
    found = report.arms_detail.named("mine")
    assert found is not None and found.conditions is not None and found.verdict is not None
    told = found.conditions
    assert (told.method, told.num_speculative_tokens, told.dtype, told.target) == (
        "dspark",
        4,
        "bfloat16",
        "/models/m",
    )
    assert (
        told.max_num_seqs is None and told.runner == told.hardware == "unknown" and told.prefix_cache is False
    )
    assert found.verdict.lossless == "identical" and found.counted == "by domain"


def test_an_arm_that_seldom_drafts_is_shown_by_its_steps(tmp_path: Path) -> None:
    """Six rounds would say 3.0 tokens; over all steps, those without a draft included, it is less."""
    profile = load_profile(profile_of(tmp_path), {"evaluate": {"live": {"max_new_tokens": 22}}}).profile
    with (
        loaded_server() as plain,
        loaded_server("--draft", "4", "--every", "5", "--by-request") as ngram,
    ):
        report = measured(tmp_path, profile, ArmAddress("plain", plain.url), ArmAddress("ngram", ngram.url))
    detail = report.arms_detail
    assert detail is not None
    # 21 tokens after the first: three rounds accept two each, so that 15 steps gave them.
    assert detail.tokens_per_step == {"plain": 1.0, "ngram": pytest.approx(21 / 15)}
    assert detail.tau_per_drafted_round == {"ngram": 3.0}
    assert report.live_per_step.macro.low is not None and report.shown == report.live_per_step
    assert report.worth is not None and "1.40 [1.40, 1.40] tokens per step" in report.worth.sentence


def test_a_second_attempt_asks_no_arm_again(tmp_path: Path) -> None:
    profile = profile_of(tmp_path, concurrency=[1], min_requests=2, requests_per_user=1, max_new_tokens=3)
    with loaded_server() as plain, loaded_server("--draft", "4") as draft:
        addresses = (ArmAddress("plain", plain.url), ArmAddress("draft", draft.url))
        first = measured(tmp_path, profile, *addresses)
        logs = sorted((tmp_path / "run/logs").iterdir())
        times = [path.stat().st_mtime_ns for path in logs]
        assert measured(tmp_path, profile, *addresses) == first
        assert [path.stat().st_mtime_ns for path in logs] == times


def test_requests_of_somebody_else_make_what_they_touch_invalid(tmp_path: Path) -> None:
    profile = profile_of(tmp_path, concurrency=[1], min_requests=2, requests_per_user=1, max_new_tokens=3)
    with loaded_server() as plain, loaded_server("--draft", "4", "--foreign") as draft:
        report = measured(tmp_path, profile, ArmAddress("plain", plain.url), ArmAddress("draft", draft.url))
    assert report.live.pooled.value is None and not report.live_valid
    assert any("another client used it" in note for note in report.notes)
    assert report.load is not None and "another client" in report.load.points[1].invalid


@pytest.mark.parametrize(
    ("plain", "draft", "said"),
    [
        (("--draft", "4"), ("--draft", "4"), "the arm without a draft counts drafts"),
        ((), (), "arm draft counts no drafts"),
        (
            (),
            ("--draft", "4", "--version", "0.33.0"),
            "arm draft is vLLM 0.33.0, the arm without a draft 0.32.0",
        ),
        ((), ("--draft", "4", "--root", "/models/other"), "arm draft serves /models/other"),
        ((), ("--draft", "4", "--max-model-len", "64"), "takes tokens up to 64"),
        ((), ("--draft", "4", "--prefix-caching", "True"), "has prefix caching True"),
    ],
)
def test_arms_that_differ_are_refused(
    tmp_path: Path, plain: tuple[str, ...], draft: tuple[str, ...], said: str
) -> None:
    with loaded_server(*plain) as first, loaded_server(*draft) as second:
        addresses = (ArmAddress("plain", first.url), ArmAddress("draft", second.url))
        with pytest.raises(ServiceError, match=said):
            attach_arms(profile_of(tmp_path), addresses)


def test_one_server_is_not_two_arms_and_a_missing_one_or_key_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    profile = profile_of(tmp_path)
    with loaded_server(key="k") as server:
        with pytest.raises(UsageError, match="NO_SUCH_KEY is not set"):
            attach_arms(profile, [ArmAddress("plain", server.url, "NO_SUCH_KEY")])
        with pytest.raises(ServiceError, match=r"refuses the key \(401\)"):
            attach_arms(profile, [ArmAddress("plain", server.url)])
    with loaded_server() as server:
        both = [ArmAddress("plain", server.url), ArmAddress("draft", server.url)]
        with pytest.raises(ServiceError, match="is the same server"):
            attach_arms(profile, both)
    with pytest.raises(ServiceError, match="does not answer"):
        attach_arms(profile, [ArmAddress("plain", "http://127.0.0.1:9")])


def test_prompts_that_do_not_fit_leave_nothing_to_ask(tmp_path: Path) -> None:
    profile = load_profile(profile_of(tmp_path), {"target": {"max_model_len": 70}}).profile
    with loaded_server() as plain, loaded_server("--draft", "4") as draft:
        addresses = (ArmAddress("plain", plain.url), ArmAddress("draft", draft.url))
        with pytest.raises(StageInputError, match="none of 5 evaluation prompts fits into -"):
            measured(tmp_path, profile, *addresses)
