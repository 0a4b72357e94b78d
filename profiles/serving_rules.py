"""Options of servers that do not go together, as a table: condition, reason, what to do, source.

Sources that begin with `vllm/` are a file of vLLM 0.32.0 and a name in it; a test holds that both exist in
the installed engine. The others are issues, examples and posts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from profiles.servers import ARMS, Server, servers_of

if TYPE_CHECKING:
    from profiles.schema import Profile

_ONLY_V1 = frozenset({"suffix", "medusa", "mlp_speculator", "custom_class"})
_FULL_GRAPHS = (None, "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
_RANKS = ("tensor_parallel", "pipeline_parallel", "data_parallel")
_EXPERT_KERNELS = ("deep_gemm_mega_moe", "flashinfer_moe_ep_cutedsl", "flashinfer_moe_ep_mega_deep_gemm")


class Rule(NamedTuple):
    """One pair of options that cannot work.

    Args:
        name: In words, for lists.
        options: The fields at fault, shown with their values.
        broken: Whether a server breaks it.
        why: What would happen.
        remedy: What to change.
        source: Where it is written.
        placement: It is about machines. A plan may ask what fewer of them would mean, so it is refused when a
            server is to start, not when the profile is loaded.
    """

    name: str
    options: tuple[str, ...]
    broken: Callable[[Server], bool]
    why: str
    remedy: str
    source: str
    placement: bool = False


RULES: tuple[Rule, ...] = (
    Rule(
        "prefix caching and capture",
        ("prefix_caching",),
        lambda s: s.captures and s.engine.prefix_caching,
        "a cached prefix is not computed, so that its tokens have no hidden states to capture",
        "turn it off here; arms have options of their own in evaluate.live.engine",
        "vLLM issue 44485",
    ),
    Rule(
        "V2 runner and capture of a hybrid target",
        ("runner",),
        lambda s: s.captures and s.hybrid and s.runner != "v1",
        "the V2 runner bills the KV cache of Kimi K3 twenty-four times while hidden states are extracted",
        "set runner to v1 here; arms run on v2 all the same",
        "vLLM issue 56774; speculators, examples/train/kimi_k3_dspark",
    ),
    Rule(
        "chunked prefill and capture of a hybrid target",
        ("chunked_prefill", "max_num_batched_tokens", "max_model_len"),
        lambda s: (
            s.captures
            and s.hybrid
            and s.engine.chunked_prefill
            and not s.engine.chunks_verified
            and s.max_num_batched_tokens < s.max_model_len
        ),
        "a prompt that one step has no room for is computed in chunks, which gave other hidden states than "
        "whole prompts on Kimi K3",
        "raise serve.max_num_batched_tokens to target.max_model_len, or compare both ways on your target and "
        "set chunks_verified",
        "vLLM issue 52909",
    ),
    Rule(
        "KV offload and capture",
        ("kv_offload",),
        lambda s: s.captures and s.engine.kv_offload is not None,
        "offloading puts its own connector in the place of the one that sends hidden states to the store",
        "leave kv_offload empty here",
        "vllm/config/vllm.py _post_init_kv_transfer_config",
    ),
    Rule(
        "P/D disaggregation and capture",
        ("disaggregation",),
        lambda s: s.captures and s.engine.disaggregation is not None,
        "a server has one KV connector, and capture needs it to send hidden states to the store",
        "leave disaggregation empty here",
        "vllm/config/kv_transfer.py kv_connector",
    ),
    Rule(
        "pipeline parallelism and capture",
        ("pipeline_parallel",),
        lambda s: s.captures and s.engine.pipeline_parallel > 1,
        "layers of earlier stages are tapped on other ranks than the one that writes; only some targets and "
        "the V2 runner relay them",
        "use tensor_parallel and nodes instead",
        "vllm/v1/worker/gpu/spec_decode/eagle/eagle3_utils.py verify_supports_aux_hidden_states_over_pp",
    ),
    Rule(
        "P/D disaggregation and KV offload",
        ("disaggregation", "kv_offload"),
        lambda s: s.engine.disaggregation is not None and s.engine.kv_offload is not None,
        "offloading puts its own connector in the place of the one between prefill and decode",
        "use one of them",
        "vllm/config/vllm.py _post_init_kv_transfer_config",
    ),
    Rule(
        "P/D disaggregation and prefix caching on a hybrid target",
        ("disaggregation", "prefix_caching"),
        lambda s: s.hybrid and s.engine.disaggregation is not None and s.engine.prefix_caching,
        "with both, the two sides must hold their recurrent states in blocks of one size, else the first "
        "request that reuses a prefix fails",
        "turn prefix_caching off",
        "vllm/distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py enable_prefix_caching",
    ),
    Rule(
        "half of a P/D pair as an arm",
        ("disaggregation",),
        lambda s: s.engine.disaggregation is not None and s.engine.disaggregation.role != "both",
        "this half of the pair answers nothing alone, so it cannot be measured",
        "start both and their proxy, and measure that: retrain-dspark evaluate --arm NAME=URL",
        "vllm/config/kv_transfer.py is_kv_consumer",
    ),
    Rule(
        "adaptive verification without CUDA graphs",
        ("adaptive_verification", "enforce_eager", "cudagraph_mode"),
        lambda s: (
            s.adaptive and (s.cpu or s.engine.enforce_eager or s.engine.cudagraph_mode not in _FULL_GRAPHS)
        ),
        "its cost tables are measured on full CUDA graphs, and the engine refuses to start without",
        "turn adaptive_verification off, or leave enforce_eager and cudagraph_mode alone on GPUs",
        "vllm/config/vllm.py _validate_adaptive_verification",
    ),
    Rule(
        "adaptive verification and LoRA",
        ("adaptive_verification", "lora"),
        lambda s: s.adaptive and s.engine.lora,
        "which adapter a token belongs to is settled on the CPU before the GPU trims the batch",
        "use one of them",
        "vllm/config/vllm.py _validate_adaptive_verification",
    ),
    Rule(
        "adaptive verification and pipeline parallelism",
        ("adaptive_verification", "pipeline_parallel"),
        lambda s: s.adaptive and s.engine.pipeline_parallel > 1,
        "only the last stage knows costs and confidences",
        "use one of them",
        "vllm/config/vllm.py _validate_adaptive_verification",
    ),
    Rule(
        "adaptive verification without a confidence head",
        ("adaptive_verification", "train.draft.confidence_head"),
        lambda s: s.adaptive and s.field == ARMS and not s.confidence,
        "the head's survival probabilities decide how much is verified",
        "train the head, or turn adaptive_verification off",
        "vllm/config/speculative.py enable_adaptive_verification",
    ),
    Rule(
        "adaptive verification of another method",
        ("adaptive_verification", "method"),
        lambda s: s.adaptive and s.method != "dspark",
        "other methods have no confidence head",
        "leave it out of this arm",
        "vllm/config/speculative.py enable_adaptive_verification",
    ),
    Rule(
        "block rejection on the V1 runner",
        ("rejection_sample_method", "runner"),
        lambda s: s.speculative.get("rejection_sample_method") == "block" and s.runner == "v1",
        "the V1 runner does not know block verification and would verify token by token without a word",
        "use the V2 runner, or rejection_sample_method standard",
        "vllm/v1/worker/gpu/spec_decode/rejection_sampler.py use_block_verification",
    ),
    Rule(
        "DSpark on the V1 runner",
        ("method", "runner"),
        lambda s: s.method == "dspark" and s.runner == "v1",
        "DSpark exists in the V2 runner only",
        "leave runner empty",
        "vllm/config/vllm.py _get_v1_model_runner_unsupported_features",
    ),
    Rule(
        "a V1 method on the V2 runner",
        ("method", "runner"),
        lambda s: s.method in _ONLY_V1 and s.runner == "v2",
        "this method does not exist in the V2 runner",
        "leave runner empty",
        "vllm/config/vllm.py _get_v2_model_runner_unsupported_features",
    ),
    Rule(
        "DSpark and decode context parallelism",
        ("method", "decode_context_parallel"),
        lambda s: s.method == "dspark" and s.engine.decode_context_parallel > 1,
        "MLA drafts were refused with it, and replicated draft caches lost nearly all acceptance (20.7 % "
        "became 0.84 %) without an error",
        "set decode_context_parallel to 1 for arms",
        "vLLM 0.28.0 release; vllm/v1/worker/gpu/model_runner.py dcp_sharded",
    ),
    Rule(
        "decode context parallelism that does not divide",
        ("tensor_parallel", "decode_context_parallel"),
        lambda s: s.engine.tensor_parallel % s.engine.decode_context_parallel != 0,
        "decode context parallelism shares out the GPUs of the tensor-parallel group",
        "make tensor_parallel a multiple of decode_context_parallel",
        "vllm/config/parallel.py decode_context_parallel_size",
    ),
    Rule(
        "expert kernels without expert parallelism",
        ("moe_backend", "expert_parallel"),
        lambda s: s.engine.moe_backend in _EXPERT_KERNELS and not s.engine.expert_parallel,
        "these kernels move tokens to whole experts themselves",
        "turn expert_parallel on, or use flashinfer_trtllm with tensor parallelism",
        "vllm/models/kimi_k3/nvidia/model.py use_mega_moe; vLLM blog, day-0 support of Kimi K3, 2026-07-27",
    ),
    Rule(
        "TRT-LLM kernels with expert parallelism over data-parallel copies",
        ("moe_backend", "expert_parallel", "data_parallel"),
        lambda s: (
            s.engine.moe_backend == "flashinfer_trtllm"
            and s.engine.expert_parallel
            and s.engine.data_parallel > 1
            and s.engine.all2all_backend not in (None, "allgather_reducescatter")
        ),
        "these kernels support no all-to-all but all-gather and reduce-scatter",
        "use deep_gemm_mega_moe, or all2all_backend allgather_reducescatter",
        "vllm/model_executor/layers/fused_moe/experts/trtllm_bf16_moe.py use_ag_rs_all2all_kernels",
    ),
    Rule(
        "all-to-all without expert parallelism",
        ("all2all_backend", "expert_parallel"),
        lambda s: s.engine.all2all_backend is not None and not s.engine.expert_parallel,
        "tokens only travel where experts are spread",
        "turn expert_parallel on, or leave all2all_backend empty",
        "vllm/config/parallel.py use_all2all",
    ),
    Rule(
        "GPUs that do not divide over nodes",
        ("nodes", *_RANKS),
        lambda s: s.engine.world % s.engine.nodes != 0,
        "every node runs the same number of ranks",
        "make the product of the three a multiple of nodes",
        "vllm/engine/arg_utils.py world_size_within_dp",
    ),
    Rule(
        "more nodes than the role has",
        ("nodes", "hardware.roles.serve.nodes"),
        lambda s: s.engine.nodes > s.role_nodes,
        "the server would wait for machines that nobody gives it",
        "lower nodes, or raise hardware.roles.serve.nodes",
        "vllm/config/parallel.py nnodes",
        placement=True,
    ),
    Rule(
        "more ranks than GPUs of a node",
        (
            "nodes",
            "tensor_parallel",
            "pipeline_parallel",
            "data_parallel",
            "hardware.roles.serve.gpus_per_node",
        ),
        lambda s: s.gpus_per_node is not None and s.engine.world > s.gpus_per_node * s.engine.nodes,
        "each rank needs a GPU of its own",
        "spread the server over more nodes, or lower the product of the three",
        "vllm/config/parallel.py world_size",
        placement=True,
    ),
    Rule(
        "several nodes behind a loopback address",
        ("nodes", "serve.host"),
        lambda s: s.engine.nodes > 1 and s.local,
        "neither the other nodes nor the capture client on the training node reach a loopback address",
        "set serve.host to the address of the first node on the fabric",
        "vllm/config/parallel.py master_addr",
    ),
    Rule(
        "two attention backends",
        ("attention_backend", "attention_config"),
        lambda s: s.engine.attention_backend is not None and "backend" in s.engine.attention_config,
        "the engine refuses to choose",
        "name it once",
        "vllm/engine/arg_utils.py attention_backend",
    ),
    Rule(
        "two CUDA graph modes",
        ("cudagraph_mode", "compilation_config"),
        lambda s: "cudagraph_mode" in s.engine.compilation_config,
        "the mode has a field, which is what the checks look at",
        "set cudagraph_mode instead",
        "vllm/config/compilation.py cudagraph_mode",
    ),
    Rule(
        "CUDA graphs and none of them",
        ("enforce_eager", "cudagraph_mode", "max_cudagraph_capture_size"),
        lambda s: (
            s.engine.enforce_eager
            and (
                s.engine.cudagraph_mode not in (None, "NONE")
                or s.engine.max_cudagraph_capture_size is not None
            )
        ),
        "enforce_eager records no CUDA graph",
        "keep one of them",
        "vllm/config/vllm.py enforce_eager",
    ),
    Rule(
        "CUDA graphs smaller than one round",
        ("max_cudagraph_capture_size", "num_speculative_tokens"),
        lambda s: (
            s.engine.max_cudagraph_capture_size is not None
            and s.drafted > 0
            and not s.captures
            and s.engine.max_cudagraph_capture_size < s.drafted + 1
        ),
        "a round verifies the drafted tokens and one more, and would run without a graph",
        "raise max_cudagraph_capture_size above the number of drafted tokens",
        "vllm/config/compilation.py max_cudagraph_capture_size",
    ),
    Rule(
        "match unit without prefix caching",
        ("prefix_match_unit", "prefix_caching"),
        lambda s: s.engine.prefix_match_unit is not None and not s.engine.prefix_caching,
        "there is no prefix to match",
        "turn prefix_caching on, or leave prefix_match_unit empty",
        "vllm/config/cache.py prefix_match_unit",
    ),
    Rule(
        "whole prompts without room for them",
        ("chunked_prefill", "max_num_batched_tokens", "max_model_len"),
        lambda s: not s.engine.chunked_prefill and s.max_num_batched_tokens < s.max_model_len,
        "without chunked prefill a step must hold the longest prompt",
        "raise serve.max_num_batched_tokens to target.max_model_len, or turn chunked_prefill on",
        "vllm/config/scheduler.py verify_max_model_len",
    ),
    Rule(
        "fewer tokens than sequences in a step",
        ("max_num_batched_tokens", "max_num_seqs"),
        lambda s: s.max_num_batched_tokens < s.max_num_seqs,
        "each running sequence takes at least one token of a step",
        "raise serve.max_num_batched_tokens, or lower the number of sequences",
        "vllm/config/scheduler.py verify_max_model_len",
    ),
)
"""Every pair that is refused."""


def refuse_invalid(profile: Profile) -> None:
    """Refuse a profile whose servers could not work, all faults at once.

    Raises:
        ValueError: A line for each broken rule: field and value, reason, what to do, source.
    """
    faults = broken_rules(profile)
    if faults:
        raise ValueError("; ".join(faults))


def broken_rules(profile: Profile, *, placement: bool = False) -> list[str]:
    """What is wrong with the options of a profile's servers, in words, each fault once.

    Args:
        placement: The rules about machines instead of the others.
    """
    faults = [
        f"{_shown(server, rule)}: {rule.why}; {rule.remedy} ({rule.source})"
        for server in servers_of(profile)
        for rule in RULES
        if rule.placement is placement and rule.broken(server)
    ]
    return list(dict.fromkeys(faults))


def _shown(server: Server, rule: Rule) -> str:
    """The fields at fault with their values, each under its full name."""
    return ", ".join(f"{server.field_of(option)} is {server.value_of(option)}" for option in rule.options)
