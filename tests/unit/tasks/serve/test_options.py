"""Typed options as vLLM's arguments; a server on several nodes has one command line each."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from profiles.load import load_profile
from profiles.schema import Profile
from profiles.serving import Engine
from tasks.errors import ServiceError, UsageError
from tasks.serve.arms import Speculation, arm_argv, arm_environment
from tasks.serve.command import layer_ids, server_argv, server_environment, target_argv, target_environment
from tasks.serve.engine_needs import refuse_old_engine, refuse_unfit
from tasks.serve.options import HEADLESS_MODULE, engine_arguments, nodes_of, refuse_typed


def k3(**overrides: Any) -> Profile:
    return load_profile("gb300-kimi-k3", overrides).profile


def value(argv: tuple[str, ...], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def test_defaults_are_left_to_the_engine() -> None:
    assert engine_arguments(Engine()) == ()


def test_the_capture_server_of_kimi_k3_is_the_published_one() -> None:
    profile = k3()
    head, second = (
        target_argv(profile, Path("/w"), layer_ids(profile, 93), 8000, "192.0.2.1:50051", node=node)
        for node in nodes_of(profile.serve.engine, "192.0.2.1")
    )
    for flag, told in {
        "--max-model-len": "8193", "--max-num-seqs": "64", "--max-num-batched-tokens": "32768",
        "--tensor-parallel-size": "8", "--nnodes": "2", "--master-addr": "192.0.2.1", "--moe-backend": "auto",
        "--all2all-backend": "flashinfer_nvlink_one_sided", "--gpu-memory-utilization": "0.95",
        "--kv-cache-dtype": "auto", "--load-format": "fastsafetensors", "--dtype": "bfloat16",
    }.items():  # fmt: skip
        assert value(head, flag) == value(second, flag) == told
    assert {"--enable-expert-parallel", "--no-enable-prefix-caching", "--language-model-only"} <= set(head)
    assert "--trust-remote-code" in head and "--enforce-eager" not in head
    assert json.loads(value(head, "--compilation-config")) == {"pass_config": {"fuse_allreduce_rms": False}}
    assert json.loads(value(head, "--attention-config"))["mla_prefill_backend"] == "TRTLLM_RAGGED"
    spoken = json.loads(value(head, "--speculative-config"))
    layers = spoken["draft_model_config"]["hf_config"]["eagle_aux_hidden_state_layer_ids"]
    assert layers == [24, 48, 72, 88, 92, 93]
    assert head.count("--kv-transfer-config") == 1
    environment = {**server_environment(profile), **target_environment(profile)}
    assert environment["VLLM_USE_V2_MODEL_RUNNER"] == "0" and environment["NCCL_MNNVL_ENABLE"] == "1"
    assert environment["VLLM_KIMI_K3_AUX_ATTN_RES_STREAM"] == "0"


def test_only_the_first_node_answers_requests() -> None:
    """`api_server` would serve in spite of `--headless`."""
    profile = k3()
    first, second = (
        arm_argv(profile, Path("/w"), 8000, node=node)
        for node in nodes_of(Engine(nodes=2), "192.0.2.1", 29501)
    )
    assert first[:3] == (sys.executable, "-m", "vllm.entrypoints.openai.api_server")
    assert second[:3] == (sys.executable, "-m", HEADLESS_MODULE)
    assert (value(first, "--node-rank"), value(second, "--node-rank")) == ("0", "1")
    assert "--headless" in second and "--headless" not in first
    assert value(first, "--master-port") == "29501"
    apart = {"--node-rank", "0", "1", "--headless", first[2], second[2]}
    assert [word for word in first if word not in apart] == [word for word in second if word not in apart]


def test_a_server_on_one_machine_says_nothing_of_nodes() -> None:
    profile = load_profile("laptop").profile
    (node,) = nodes_of(profile.serve.engine, "")
    alone = target_argv(profile, Path("/w"), (2, 30), 8000, "127.0.0.1:1")
    assert target_argv(profile, Path("/w"), (2, 30), 8000, "127.0.0.1:1", node=node) == alone
    assert not any(word.startswith(("--nnodes", "--tensor")) for word in alone)


def test_arms_take_the_options_of_capture_where_they_have_none() -> None:
    shared = {"serve": {"engine": {"tensor_parallel": 2, "runner": "v1"}}, "hardware": {"mode": "nvidia"}}
    profile = load_profile("laptop", {**shared, "evaluate": {"live": {"triton_interpreter": False}}}).profile
    assert value(arm_argv(profile, Path("/w"), 1), "--tensor-parallel-size") == "2"
    assert arm_environment(profile)["VLLM_USE_V2_MODEL_RUNNER"] == "1", "DSpark needs it"
    assert target_environment(profile)["VLLM_USE_V2_MODEL_RUNNER"] == "0"
    own = {"evaluate": {"live": {"triton_interpreter": False, "engine": {"prefix_caching": True}}}}
    apart = load_profile("laptop", {**shared, **own}).profile
    argv = arm_argv(apart, Path("/w"), 1)
    assert "--enable-prefix-caching" in argv and "--tensor-parallel-size" not in argv


def test_adaptive_verification_reaches_the_speculative_config() -> None:
    profile = k3(evaluate={"live": {"adaptive_verification": True}})
    from tasks.serve.command import dspark_speculative_config

    assert dspark_speculative_config(profile, "/d") == {
        "method": "dspark", "model": "/d", "num_speculative_tokens": 8,
        "draft_sample_method": "probabilistic", "rejection_sample_method": "block",
        "enable_adaptive_verification": True,
    }  # fmt: skip
    assert "enable_adaptive_verification" not in dspark_speculative_config(k3(), "/d")


def test_p_d_disaggregation_and_offload_become_arguments() -> None:
    words = engine_arguments(Engine.model_validate({"disaggregation": {"role": "prefill"}}))
    assert json.loads(value(words, "--kv-transfer-config")) == {
        "kv_connector": "NixlConnector", "kv_role": "kv_producer",
    }  # fmt: skip
    words = engine_arguments(Engine.model_validate({"kv_offload": {"gib": 64, "backend": "lmcache"}}))
    assert words == ("--kv-offloading-size", "64", "--kv-offloading-backend", "lmcache")


def test_a_draft_with_a_tap_point_of_its_own_gets_it() -> None:
    assert arm_environment(k3())["VLLM_KIMI_K3_AUX_ATTN_RES_STREAM"] == "0"
    how = Speculation({"method": "dspark"}, tap_point="attn_res_stream")
    environment = arm_environment(k3(), how.runner, how.tap_point)
    assert environment["VLLM_KIMI_K3_AUX_ATTN_RES_STREAM"] == "1"
    assert "VLLM_KIMI_K3_AUX_ATTN_RES_STREAM" not in arm_environment(load_profile("laptop").profile)


@pytest.mark.parametrize(
    ("word", "field"),
    [
        ("--tensor-parallel-size", "tensor_parallel"), ("-tp=2", "tensor_parallel"),
        ("--tensor-par", "tensor_parallel"),
        ("--kv_cache_dtype", "kv_cache_dtype"), ("--no-enable-flashinfer-autotune", "flashinfer_autotune"),
        ("--attention-config.backend=FLASHINFER", "attention_config"), ("--enable-lora", "lora"),
        ("--nnodes", "nodes"), ("--headless", "nodes"), ("-cc", "compilation_config"),
    ],
)  # fmt: skip
def test_an_argument_with_a_field_of_its_own_is_refused(word: str, field: str) -> None:
    """Past the field no rule would look at it."""
    profile = load_profile("laptop", {"serve": {"extra_args": [word, "2"]}}).profile
    with pytest.raises(UsageError, match="has a field of its own") as caught:
        arm_argv(profile, Path("/w"), 1)
    assert f"serve.engine.{field}" in caught.value.hint


def test_other_arguments_pass() -> None:
    refuse_typed(("--seed", "1", "--disable-log-requests", "--enable-sleep-mode", "--max-logprobs=5"))


def test_an_engine_that_is_too_old_is_refused_before_it_loads_anything() -> None:
    refuse_old_engine(k3(), "vllm 0.33.0")
    with pytest.raises(
        ServiceError, match=r"vllm 0.26.0 is too old: .*needs 0.27.1 \(vLLM recipes"
    ) as caught:
        refuse_old_engine(k3(), "vllm 0.26.0")
    assert caught.value.where == "target.tap_point, evaluate.live.rejection_sample_method"


def test_a_server_without_machines_for_its_ranks_does_not_start() -> None:
    one_tray = k3(hardware={"roles": {"serve": {"nodes": 1}}})
    with pytest.raises(UsageError, match=r"serve\.engine\.nodes is 2.*hardware\.roles\.serve\.nodes is 1"):
        refuse_unfit(one_tray, "vllm 0.33.0")
    refuse_unfit(k3(), "vllm 0.33.0")


def test_options_of_a_cpu_server_are_said_once() -> None:
    profile = load_profile("laptop", {"serve": {"engine": {"enforce_eager": True}}}).profile
    argv = server_argv(
        profile,
        model=Path("/w"),
        served_name="t",
        port=1,
        dtype="float32",
        max_num_seqs=1,
        engine=profile.serve.engine,
    )
    assert argv.count("--enforce-eager") == 1
