"""The cluster profiles say what was published, field by field, and leave open what was not."""

from __future__ import annotations

from functools import reduce
from typing import Any

import pytest

from profiles.load import load_profile
from tasks.plan.numbers import shape_of_draft
from tasks.train.size import draft_parameters, serving_parameters

GIB = 2**30
K3: dict[str, Any] = {
    "target.aux_layer_ids": (24, 48, 72, 88, 92),
    "target.max_model_len": 8193,
    "target.dtype": "bfloat16",
    "target.tap_point": "prefix_only",
    "target.trust_remote_code": True,
    "target.allow_code": None,
    "target.revision": None,
    "hardware.weights_gb": 1561,
    "hardware.roles.serve.nodes": 2,
    "hardware.roles.serve.gpus_per_node": 4,
    "hardware.roles.train.nodes": 1,
    "hardware.roles.train.gpus_per_node": 4,
    "hardware.os.kernel_min": "6.14",
    "hardware.os.page_size_bytes": 65536,
    "hardware.driver.exact": "610.57.04",
    "serve.max_num_seqs": 64,
    "serve.max_num_batched_tokens": 32768,
    "serve.ready_timeout_s": 3600,
    "serve.engine.tensor_parallel": 8,
    "serve.engine.nodes": 2,
    "serve.engine.expert_parallel": True,
    "serve.engine.all2all_backend": "flashinfer_nvlink_one_sided",
    "serve.engine.moe_backend": "auto",
    "serve.engine.gpu_memory_utilization": 0.95,
    "serve.engine.kv_cache_dtype": "auto",
    "serve.engine.prefix_caching": False,
    "serve.engine.runner": "v1",
    "serve.engine.language_model_only": True,
    "serve.engine.load_format": "fastsafetensors",
    "serve.engine.attention_config": {
        "mla_prefill_backend": "TRTLLM_RAGGED",
        "use_prefill_query_quantization": False,
    },
    "serve.engine.compilation_config": {"pass_config": {"fuse_allreduce_rms": False}},
    "serve.environment": {
        "NCCL_MNNVL_ENABLE": "1",
        "TORCH_DISTRIBUTED_USE_LIBUV": "0",
        "VLLM_ALLREDUCE_USE_FLASHINFER": "1",
        "VLLM_ENGINE_READY_TIMEOUT_S": "3600",
    },
    "store.protocol": "tcp",
    "store.segment_bytes": 32 * GIB,
    "store.local_buffer_bytes": 4 * GIB,
    "store.writer_threads": 4,
    "stream.answers": "recorded",
    "stream.recorded_else": "drop",
    "stream.sample_timeout_s": 900,
    "stream.max_attempts": 3,
    "prompts.held_out": 0.001,
    "train.scale.ranks": 4,
    "train.scale.strategy": "ddp",
    "train.packs_per_step": 4,
    "train.epochs": 1,
    "train.batch_tokens": 8192,
    "train.anchors": 1024,
    "train.optimizer": "muon",
    "train.lr": 1e-4,
    "train.muon_lr": 1e-3,
    "train.schedule": "cosine",
    "train.warmup": 0.03,
    "train.loss_ce": 0.1,
    "train.loss_tv": 0.9,
    "train.loss_kl": 0.0,
    "train.loss_confidence": 1.0,
    "train.decay_gamma": 4.0,
    "train.init_from": None,
    "train.draft.num_layers": 5,
    "train.draft.block_size": 8,
    "train.draft.intermediate_size": 14336,
    "train.draft.num_attention_heads": 96,
    "train.draft.num_key_value_heads": 16,
    "train.draft.head_dim": 64,
    "train.draft.rope_theta": 10000.0,
    "train.draft.rms_norm_eps": 1e-5,
    "train.draft.mask_token_id": 163837,
    "train.draft.markov_rank": 256,
    "train.draft.markov_head_type": "vanilla",
    "train.draft.confidence_head": True,
    "train.draft.confidence_with_markov": True,
    "train.draft.sample_from_anchor": True,
    "train.draft.vocab_size": None,
    "train.draft.sliding_window": 2048,
    "train.draft.full_attention_layers": (),
    "evaluate.live.dtype": "bfloat16",
    "evaluate.live.draft_sample_method": "probabilistic",
    "evaluate.live.rejection_sample_method": "block",
    "evaluate.live.adaptive_verification": False,
    "evaluate.live.engine.gpu_memory_utilization": 0.95,
    "evaluate.live.engine.kv_cache_dtype": "fp8",
    "evaluate.live.engine.attention_backend": "TOKENSPEED_MLA",
    "evaluate.live.engine.attention_config": {
        "use_prefill_query_quantization": True,
        "mla_prefill_backend": "TOKENSPEED_MLA",
    },
    "evaluate.live.engine.flashinfer_autotune": False,
    "evaluate.live.engine.reasoning_parser": "kimi_k3",
    "evaluate.live.engine.language_model_only": True,
    "evaluate.live.engine.load_format": "fastsafetensors",
    "evaluate.live.engine.tensor_parallel": 8,
    "evaluate.live.own_arms.inferact.speculative_config": {
        "method": "dspark",
        "model": "Inferact/Kimi-K3-DSpark",
        "revision": None,
        "num_speculative_tokens": 7,
        "attention_backend": "FLASHINFER_MLA",
        "draft_sample_method": "probabilistic",
        "rejection_sample_method": "block",
    },
    "expected_minutes": None,
}
"""The published training recipe and server flags of Kimi K3, and what of them was not published (None)."""
GLM: dict[str, Any] = {
    "target.aux_layer_ids": (2, 20, 39, 58, 75),
    "target.max_model_len": 8193,
    "target.tap_point": None,
    "target.trust_remote_code": False,
    "train.epochs": 1,
    "train.lr": 3e-4,
    "train.batch_tokens": 8192,
    "train.anchors": 1024,
    "train.scale.strategy": "fsdp",
    "train.draft.num_layers": 3,
    "train.draft.block_size": 8,
    "hardware.target": None,
    "serve.engine.attention_config": {},
}
QWEN36: dict[str, Any] = {
    "target.aux_layer_ids": (2, 10, 20, 30, 37),
    "train.batch_tokens": 16000,
    "hardware.target": None,
    "train.draft.mask_token_id": None,
}
GEMMA: dict[str, Any] = {
    "target.aux_layer_ids": (1, 17, 29, 47, 58),
    "train.draft.vocab_size": 32000,
    "train.init_from": None,
    "hardware.target": None,
    "train.draft.mask_token_id": None,
}
QWEN8: dict[str, Any] = {
    # The paper counts outputs of layers from 0, vLLM inputs: [1, 9, 17, 25, 33] there.
    "target.aux_layer_ids": (2, 10, 18, 26, 34),
    "target.max_model_len": 4096,
    "stream.temperature": 0.7,
    "stream.top_p": 0.8,
    "prompts.held_out": 0.05,
    "train.epochs": 10,
    "train.anchors": 512,
    "train.lr": 6e-4,
    "train.warmup": 0.04,
    "train.weight_decay": 0.0,
    "train.grad_clip": 1.0,
    "train.decay_gamma": 4.0,
    "train.seed": 42,
    "train.draft.num_layers": 5,
    "train.draft.block_size": 7,
    "train.draft.mask_token_id": 151669,
    "train.draft.markov_rank": 256,
    "train.draft.markov_head_type": "vanilla",
}
PUBLISHED = {
    "gb300-kimi-k3": K3,
    "gb300-glm-5.2": GLM,
    "qwen3.6-35b-a3b": QWEN36,
    "gemma-4-31b-it": GEMMA,
    "h200-qwen3-8b": QWEN8,
}
UNKNOWN = {
    "gb300-kimi-k3": {
        "evaluate.live.own_arms.inferact.speculative_config.revision",
        "evaluate.live.own_arms.inferact.tap_point",
        "expected_minutes",
        "target.allow_code",
        "target.revision",
    },
    "laptop": set(),
}


def value(profile: Any, field: str) -> Any:
    def step(part: Any, name: str) -> Any:
        return part[name] if isinstance(part, dict) else getattr(part, name)

    return reduce(step, field.split("."), profile)


@pytest.mark.parametrize("name", PUBLISHED)
def test_each_field_is_as_published(name: str) -> None:
    profile = load_profile(name).profile
    found = {field: value(profile, field) for field in PUBLISHED[name]}
    assert found == PUBLISHED[name]


def test_the_draft_of_kimi_k3_has_the_published_number_of_parameters() -> None:
    profile = load_profile("gb300-kimi-k3").profile
    assert profile.hardware.target is not None
    # Whatever heads the target has: the draft's are written out.
    target = profile.hardware.target.model_copy(update={"num_attention_heads": 1, "num_key_value_heads": 1})
    shape = shape_of_draft(profile, target)
    assert serving_parameters(shape) == 4_744_900_481
    assert draft_parameters(shape).trained == 2_396_090_241


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_was_not_published_is_listed(name: str) -> None:
    assert set(load_profile(name).unknown) == UNKNOWN[name]


def test_nothing_that_was_not_published_has_a_value() -> None:
    for name in set(PUBLISHED) - {"gb300-kimi-k3"}:
        assert {"target.revision", "expected_minutes"} <= set(load_profile(name).unknown), name
    assert "train.init_from" in load_profile("gemma-4-31b-it").unknown


@pytest.mark.parametrize("name", [*PUBLISHED, "laptop"])
def test_each_profile_opens_with_whom_it_is_for_its_hardware_and_its_time(name: str) -> None:
    from importlib import resources

    text = (resources.files("profiles") / f"{name}.yaml").read_text(encoding="utf-8")
    head = " ".join(line[2:] for line in text.splitlines() if line.startswith("# "))
    assert text.startswith("# For ")
    if name == "laptop":
        assert "quarter of an hour" in head and "two cores" in head
        return
    assert "Time: not published" in head and "Published (" in head
    assert "stimate" in head, "what is estimated"
    assert "run" in head and ("none of it" in head or "ot run" in head), "that it was not run"
