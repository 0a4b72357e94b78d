"""Requirements: from profiles, with the plan's numbers, and with severities that a profile changes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from gb300_facts import bad, every_link, fleet, group, needs, patched, result_of, whole

from profiles.load import ProfileProblem, load_profile
from tasks.errors import UsageError
from tasks.plan.numbers import plan_numbers
from tasks.prompts.counts import PromptCounts, SideCounts, Spread
from tasks.validate.checks import CHECKS, judge
from tasks.validate.driver_checks import toolkit_channel
from tasks.validate.requirements import refuse_unknown_overrides, requirements_of, with_plan


def test_k3_needs_two_trays() -> None:
    two = result_of(fleet(), needs(), "plan.weights_memory")
    assert two.status == "pass" and "8 GPUs" in two.observed
    one = needs({"hardware": {"roles": {"serve": {"nodes": 1}}}})
    result = result_of(fleet(), one, "plan.weights_memory")
    assert result.status == "fail" and "1,561 GB" in result.message and "4 GPUs" in result.observed


def test_weights_are_held_against_observed_memory_where_the_profile_names_none() -> None:
    free = {"serve": {"memory_total_mib_min": None}}
    need = needs({"hardware": {"roles": free}})
    assert result_of(fleet(), need, "plan.weights_memory").status == "pass"
    assert result_of(fleet()[:1], need, "plan.weights_memory").status == "fail"
    none = patched(fleet(), "serve", whole(gpus=[], gpus_attached=0))
    assert result_of(none, need, "plan.weights_memory").status == "skip"


def test_the_published_draft_of_k3_is_counted_exactly() -> None:
    plan = needs().plan
    assert plan is not None
    assert (plan.draft_parameters, plan.trained_parameters) == (4_744_900_481, 2_396_090_241)
    assert "4,744,900,481" in result_of(fleet(), needs(), "plan.trainer_memory").message


def test_bytes_and_rate_of_k3() -> None:
    plan = needs().plan
    assert plan is not None
    assert (plan.sizes.token_bytes, plan.sizes.largest_tokens) == (86_024, 8192)
    assert plan.sizes.largest_bytes == pytest.approx(704.7e6, rel=1e-3)
    assert plan.required_gb_per_s == pytest.approx(2.58, abs=0.005)


@pytest.mark.parametrize(("gib", "status"), [(2, "fail"), (3, "fail"), (4, "pass")])
def test_four_writers_of_k3_samples_need_four_gib(gib: int, status: str) -> None:
    need = needs({"store": {"local_buffer_bytes": gib * 2**30}})
    assert result_of(fleet(), need, "store.roundtrip").status == status


def test_the_size_of_the_log_is_known_once_the_prompts_are() -> None:
    profile = load_profile("gb300-kimi-k3").profile
    target: Any = SimpleNamespace(
        hidden_size=7168, vocab_size=163840, intermediate_size=14336, num_attention_heads=96,
        num_key_value_heads=16, head_dim=64,
    )  # fmt: skip

    def counted(chars: int) -> PromptCounts:
        return PromptCounts(train=SideCounts(prompts=100_000, chars=Spread(mean=chars)))

    need = with_plan(requirements_of(profile), profile, target, counted(160))
    assert need.plan == plan_numbers(profile, target, counted(160))
    result = result_of(fleet(), need, "plan.disk", "train-0")
    assert result.status == "fail" and "33,2" in result.message, "35.7 TB of hidden states"
    assert "prompts estimated from their characters" in result.message
    longer = plan_numbers(profile, target, counted(160 + 4 * 1000))
    assert longer.log_bytes is not None and need.plan is not None and need.plan.log_bytes is not None
    more = 100_000 * 1000 * longer.sizes.token_bytes
    assert longer.log_bytes - need.plan.log_bytes == more, "longer prompts need a larger disk"


def test_of_a_log_with_a_window_only_the_window_must_fit() -> None:
    values = {"stream": {"retention": "window", "window_bytes": 10**12}, "train": {"epochs": 1}}
    profile = load_profile("gb300-kimi-k3", values).profile
    target: Any = profile.hardware.target
    prompts = PromptCounts(train=SideCounts(prompts=100_000, chars=Spread(mean=160)))
    plan = plan_numbers(profile, target, prompts)
    assert plan.log_disk_bytes == 10**12 and plan.log_bytes is not None and plan.log_bytes > 10**13


def test_nothing_is_wired_to_one_gpu() -> None:
    need = needs(profile="h200-qwen3-8b")
    node = patched(
        fleet()[2:],
        "all",
        whole(role="serve+train", imex={}, rdma=[], gpu_peers=[], gpus_attached=1, gpus_on_pci=1),
        group("os", machine="x86_64", page_size_bytes=4096),
        lambda facts: whole(
            gpus=[
                {
                    **facts.model_dump()["gpus"][0],
                    "name": "NVIDIA H200",
                    "compute_capability": (9, 0),
                    "memory_total_mib": 143771,
                    "nvlinks": None,
                    "fabric": {},
                    "c2c_enabled": False,
                }
            ],
            versions={**facts.versions, "vllm": "0.33.0"},
            store={
                **fleet()[0].store.model_dump(),
                "spans_hosts": False,
                "sample_bytes": 201_310_712,
            },
        )(facts),
    )
    assert bad(node, need) == {}
    assert bad(node, needs())["gpu.model"] == "fail"


@pytest.mark.parametrize(("severity", "status"), [("warn", "warn"), ("skip", "skip"), ("fail", "fail")])
def test_a_profile_can_change_how_a_check_is_taken(severity: str, status: str) -> None:
    need = needs({"hardware": {"severity_overrides": {"nvlink.links": severity}}})
    slow = patched(fleet(), "serve-0", every_link(speed_mb_s=26562))
    result = result_of(slow, need, "nvlink.links", "serve-0")
    assert result.status == status
    assert result_of(fleet(), need, "nvlink.links", "serve-0").status == "pass"
    assert bool(result.remedy) is (status != "skip")


def test_a_warning_can_be_made_a_failure() -> None:
    need = needs({"hardware": {"severity_overrides": {"cuda.toolkit": "fail"}}})
    assert result_of(fleet(), need, "cuda.toolkit").status == "fail"


def test_an_unknown_check_is_refused_with_the_nearest_name() -> None:
    hardware = needs({"hardware": {"severity_overrides": {"nvlink.link": "skip"}}}).hardware
    with pytest.raises(UsageError) as caught:
        refuse_unknown_overrides(hardware, CHECKS)
    assert "nvlink.links" in caught.value.hint


@pytest.mark.parametrize(
    ("toolkit", "channel"),
    [("13.4.0", "preview"), ("13.4.1", "release"), ("13.5.0", "release"), (None, "none")],
)
def test_the_channel_of_a_toolkit(toolkit: str | None, channel: str) -> None:
    assert toolkit_channel(toolkit) == channel


@pytest.mark.parametrize(
    ("toolkit", "api", "words"),
    [
        ("13.4.1", 13040, ()),
        ("13.4.1", 13030, ("newer than the driver's API 13.3",)),
        ("12.9.1", 13030, ("older than 13.4", "sm_107")),
        ("12.8.0", 13030, ("sm_103", "sm_107")),
        ("13.4.0", 13040, ("developer preview",)),
    ],
)
def test_toolkit_and_driver_are_judged_apart(toolkit: str, api: int, words: tuple[str, ...]) -> None:
    nodes = patched(fleet(), "all", group("cuda", toolkit=toolkit, driver_api=api))
    result = result_of(nodes, needs(), "cuda.toolkit")
    assert result.status == ("warn" if words else "pass")
    assert all(word in result.message for word in words)
    assert result_of(nodes, needs(), "cuda.driver_api").status == "pass"


def test_a_preview_can_be_forbidden() -> None:
    need = needs({"hardware": {"cuda": {"forbid_preview": True}}})
    assert result_of(fleet(), need, "cuda.toolkit").status == "fail"


def test_compiling_for_an_architecture_is_not_running_it() -> None:
    need = needs({"hardware": {"roles": {"train": {"compute_capability": [10, 7]}}}})
    result = result_of(fleet(), need, "driver.version", "train-0")
    assert result.status == "fail" and "R615" in result.message
    assert result_of(fleet(), need, "driver.version", "serve-0").status == "pass"


@pytest.mark.parametrize(
    "overrides",
    [
        {"hardware": {"roles": {"colocated": True}}},
        {"hardware": {"roles": {"serve": {"gpu_name_regex": "("}}}},
        {"hardware": {"driver": {"min": "five"}}},
        {"hardware": {"severity_overrides": {"gpu.idle": "ignore"}}},
    ],
)
def test_requirements_that_make_no_sense_are_refused(overrides: dict[str, Any]) -> None:
    with pytest.raises(ProfileProblem):
        load_profile("gb300-kimi-k3", overrides)


def test_requirements_of_both_roles_hold_on_a_node_that_fills_both() -> None:
    need = needs(
        {"hardware": {"roles": {"colocated": True, "train": {"nodes": 2, "memory_total_mib_min": 290000}}}}
    )
    both = patched(fleet()[:2], "all", whole(role="serve+train"))
    states = {r.subject: r.status for r in judge(both, need) if r.id == "gpu.memory"}
    assert states == {"serve-0": "fail", "serve-1": "fail"}
