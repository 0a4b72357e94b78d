"""How vLLM serves the target: for capture, and the options that capture and arms are started with.

`serve.engine` holds the options of the server that captures hidden states, `evaluate.live.engine` those of
the arms. Which of them go together is in `profiles/serving_rules.py`, which engine knows them in
`profiles/serving_versions.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from profiles.part import Part, Port, Positive, Rate, Seconds

Runner = Literal["v1", "v2"]
TapPoint = Literal["prefix_only", "attn_res_stream"]
"""Where the states of a layer are taken in a target with Attention Residuals: the running sum alone, or mixed
with the residual blocks as the next layer reads it."""
GraphMode = Literal["NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.+-]{1,64}$")]
All2All = Literal[
    "allgather_reducescatter",
    "deepep_high_throughput",
    "deepep_low_latency",
    "deepep_v2",
    "flashinfer_nvlink_one_sided",
    "flashinfer_nvlink_two_sided",
    "moonep",
    "nixl_ep",
]

TAP_VARIABLE = "VLLM_KIMI_K3_AUX_ATTN_RES_STREAM"
"""vLLM's switch between the two tap points (`vllm/models/kimi_k3/nvidia/model.py _aux_attn_res_stream`)."""
RUNNER_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"
"""vLLM's switch between its two model runners."""
SET_BY_FIELDS = {RUNNER_VARIABLE: "serve.engine.runner", TAP_VARIABLE: "target.tap_point"}
"""Variables of the server that a field of the profile sets."""


class KvOffload(Part):
    """KV cache that moves to the host's memory when the GPUs' is full."""

    gib: Annotated[float, Field(gt=0)]
    """Size of the buffer, GiB, of all tensor-parallel ranks together."""
    backend: Literal["native", "lmcache"] = "native"
    """Who keeps it."""


class Disaggregation(Part):
    """Prefill and decode on different servers: this one's part in it."""

    connector: Literal["NixlConnector", "MooncakeConnector"] = "NixlConnector"
    """How the KV cache travels from the one to the other."""
    role: Literal["prefill", "decode", "both"] = "both"
    """Part of this server. Only one that does `both` answers without a proxy in front."""

    @property
    def kv_role(self) -> str:
        """vLLM's name of the role."""
        return {"prefill": "kv_producer", "decode": "kv_consumer", "both": "kv_both"}[self.role]


class Engine(Part):
    """Options of one vLLM server. What is empty is left to vLLM."""

    tensor_parallel: Positive = 1
    """GPUs that share each layer."""
    pipeline_parallel: Positive = 1
    """Groups of GPUs that have some of the layers each."""
    data_parallel: Positive = 1
    """Copies of the model behind one address."""
    expert_parallel: bool = False
    """Spread whole experts over the GPUs instead of a slice of each."""
    decode_context_parallel: Positive = 1
    """GPUs of the tensor-parallel group that share one KV cache in decoding."""
    nodes: Positive = 1
    """Machines that one server spans; each runs a command line of its own."""
    all2all_backend: All2All | None = None
    """How tokens travel to their experts."""
    moe_backend: Name | None = None
    """Kernels of the experts, e.g. `auto`, `deep_gemm_mega_moe`, `flashinfer_trtllm`."""
    gpu_memory_utilization: Rate | None = None
    """Share of each GPU's memory that the server takes."""
    kv_cache_dtype: Name | None = None
    """Type of the KV cache, e.g. `auto`, `fp8`."""
    prefix_caching: bool = False
    """Keep the KV cache of prompts that others may begin with."""
    prefix_match_unit: Positive | None = None
    """Tokens at whose multiples a cached prefix may end."""
    chunked_prefill: bool = True
    """Compute a prompt in several steps where one step has no room for it."""
    chunks_verified: bool = False
    """Hidden states of prompts in chunks were found equal to those of whole ones, on this target and engine.
    Capture then takes prompts longer than `serve.max_num_batched_tokens`."""
    runner: Runner | None = None
    """Model runner; for arms empty is v2, which DSpark needs, as far as the method of the arm is there."""
    enforce_eager: bool = False
    """No CUDA graphs and no compilation."""
    cudagraph_mode: Literal["NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"] | None = (
        None
    )
    """What is recorded as CUDA graphs."""
    max_cudagraph_capture_size: Positive | None = None
    """Most tokens of a step that has a CUDA graph."""
    flashinfer_autotune: bool | None = None
    """Try FlashInfer's kernels at the start."""
    attention_backend: Name | None = None
    """Attention kernels."""
    attention_config: dict[str, Any] = {}
    """vLLM's `--attention-config`."""
    compilation_config: dict[str, Any] = {}
    """vLLM's `--compilation-config`, without the CUDA graph mode."""
    load_format: Name | None = None
    """How weights are read, e.g. `fastsafetensors`."""
    language_model_only: bool = False
    """Leave out image, audio and video parts of the target."""
    tool_call_parser: Name | None = None
    """Reads tool calls out of answers, and lets the target choose them by itself."""
    reasoning_parser: Name | None = None
    """Separates reasoning from answers."""
    lora: bool = False
    """Serve LoRA adapters too."""
    kv_offload: KvOffload | None = None
    """KV cache in the host's memory."""
    disaggregation: Disaggregation | None = None
    """Prefill and decode on different servers."""

    @property
    def world(self) -> int:
        """GPUs of the whole server."""
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel


class Serve(Part):
    """How the target is served while hidden states are captured."""

    kind: Literal["launch", "attach"] = "launch"
    """`launch` starts a server for the run; `attach` uses one that already runs and never touches it."""
    url: str | None = None
    """Base URL of the running server (`attach` only)."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the running server's key (`attach` only)."""
    served_name: str = "target"
    """Model name in requests."""
    host: str = "127.0.0.1"
    """Address that the server binds."""
    port: Port = 0
    """Port of the server; 0 takes a free one."""
    max_num_seqs: Positive = 16
    """Requests that the server runs at once."""
    max_num_batched_tokens: Positive = 4096
    """Tokens that the server computes in one step."""
    kv_cache_gib: Annotated[float, Field(gt=0)] | None = None
    """KV cache, GiB, on CPU (`VLLM_CPU_KVCACHE_SPACE`); empty leaves it to vLLM."""
    engine: Engine = Engine()
    """Options of the server that captures; arms take them too where `evaluate.live.engine` is empty."""
    extra_args: tuple[str, ...] = ()
    """Further vLLM arguments, one word each. Not what has a field or is set by the pipeline itself."""
    environment: dict[str, str] = {}
    """Further environment variables of the server. Never secrets."""
    ready_timeout_s: Seconds = 600.0
    """Longest time from start to the first real answer, seconds."""
    ready_idle_s: Seconds = 240.0
    """Longest silence of the server's log while it starts, seconds."""
    progress_timeout_s: Seconds = 180.0
    """Longest time in which requests are open and no token is generated, seconds."""

    @model_validator(mode="after")
    def _one_way_to_set(self) -> Serve:
        for name in SET_BY_FIELDS.keys() & self.environment.keys():
            raise ValueError(
                f"serve.environment sets {name}, which {SET_BY_FIELDS[name]} decides: the field is recorded "
                "with what was captured and measured; remove the variable and set the field"
            )
        return self
