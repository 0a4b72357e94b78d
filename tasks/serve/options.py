"""Typed options of a server as vLLM's arguments, and the command lines of a server that spans nodes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from profiles.serving import RUNNER_VARIABLE, TAP_VARIABLE, Engine, Runner, TapPoint
from tasks.errors import UsageError

HEADLESS_MODULE = "tasks.serve.engine.headless"

_VALUES = {
    "tensor_parallel": "--tensor-parallel-size",
    "pipeline_parallel": "--pipeline-parallel-size",
    "data_parallel": "--data-parallel-size",
    "decode_context_parallel": "--decode-context-parallel-size",
    "all2all_backend": "--all2all-backend",
    "moe_backend": "--moe-backend",
    "gpu_memory_utilization": "--gpu-memory-utilization",
    "kv_cache_dtype": "--kv-cache-dtype",
    "prefix_match_unit": "--prefix-match-unit",
    "max_cudagraph_capture_size": "--max-cudagraph-capture-size",
    "attention_backend": "--attention-backend",
    "load_format": "--load-format",
    "reasoning_parser": "--reasoning-parser",
}
"""Options that are one flag with their value."""
_SWITCHES = {
    "expert_parallel": "--enable-expert-parallel",
    "enforce_eager": "--enforce-eager",
    "language_model_only": "--language-model-only",
    "lora": "--enable-lora",
}
"""Options that are a flag alone."""
_OTHERS = {
    "nodes": ("--nnodes", "--node-rank", "--master-addr", "--master-port", "--headless"),
    "flashinfer_autotune": ("--enable-flashinfer-autotune",),
    "attention_config": ("--attention-config",),
    "compilation_config": ("--compilation-config",),
    "tool_call_parser": ("--tool-call-parser", "--enable-auto-tool-choice"),
    "kv_offload": ("--kv-offloading-size", "--kv-offloading-backend"),
}
_SHORT = {
    "-tp": "tensor_parallel",
    "-pp": "pipeline_parallel",
    "-dp": "data_parallel",
    "-dcp": "decode_context_parallel",
    "-ac": "attention_config",
    "-cc": "compilation_config",
    "-n": "nodes",
    "-r": "nodes",
}
FIELD_OF_FLAG = {
    **{flag: name for name, flag in (*_VALUES.items(), *_SWITCHES.items())},
    **{flag: name for name, flags in _OTHERS.items() for flag in flags},
    **_SHORT,
}
"""Flag -> option of `profiles.serving.Engine` that sets it."""


@dataclass(frozen=True)
class Node:
    """One machine of a server that spans several.

    Args:
        rank: From 0; the first one answers requests, the others only compute.
        nodes: All of them.
        head: Address of the first one, which every one of them reaches.
        head_port: Port there at which they meet; None takes vLLM's.
    """

    rank: int
    nodes: int
    head: str
    head_port: int | None = None

    def arguments(self) -> tuple[str, ...]:
        """What this machine's command line says more than that of a server on one machine."""
        if self.nodes == 1:
            return ()
        port = ("--master-port", str(self.head_port)) if self.head_port is not None else ()
        return (
            "--nnodes", str(self.nodes),
            "--node-rank", str(self.rank),
            "--master-addr", self.head,
            *port,
            *(("--headless",) if self.rank else ()),
        )  # fmt: skip


def nodes_of(engine: Engine, head: str, head_port: int | None = None) -> tuple[Node, ...]:
    """Every machine that a server of these options spans, the first one first."""
    return tuple(Node(rank, engine.nodes, head, head_port) for rank in range(engine.nodes))


def engine_arguments(engine: Engine, *, drafts_for_capture: bool = False) -> tuple[str, ...]:
    """Arguments of the options that differ from vLLM's own defaults, always in the same order.

    Chunked prefill and prefix caching are written out with every server and are not among them.

    Args:
        drafts_for_capture: The server sends hidden states through its KV connector already.
    """
    words: list[str] = []
    defaults = Engine()
    for name, flag in _VALUES.items():
        value = getattr(engine, name)
        if value != getattr(defaults, name):
            words += [flag, f"{value:g}" if isinstance(value, float) else str(value)]
    words += [flag for name, flag in _SWITCHES.items() if getattr(engine, name)]
    if engine.flashinfer_autotune is not None:
        words.append(f"--{'' if engine.flashinfer_autotune else 'no-'}enable-flashinfer-autotune")
    if engine.tool_call_parser is not None:
        words += ["--enable-auto-tool-choice", "--tool-call-parser", engine.tool_call_parser]
    for flag, mapping in (
        ("--attention-config", engine.attention_config),
        ("--compilation-config", _compilation(engine)),
        ("--kv-transfer-config", {} if drafts_for_capture else _transfer(engine)),
    ):
        words += [flag, json.dumps(mapping)] if mapping else []
    if engine.kv_offload is not None:
        offload = engine.kv_offload
        words += ["--kv-offloading-size", f"{offload.gib:g}", "--kv-offloading-backend", offload.backend]
    return tuple(words)


def cache_arguments(engine: Engine) -> tuple[str, ...]:
    """Chunked prefill and prefix caching, written out: vLLM's own defaults depend on the model."""
    return (
        f"--{'' if engine.chunked_prefill else 'no-'}enable-chunked-prefill",
        f"--{'' if engine.prefix_caching else 'no-'}enable-prefix-caching",
    )


def _compilation(engine: Engine) -> dict[str, Any]:
    mode = {} if engine.cudagraph_mode is None else {"cudagraph_mode": engine.cudagraph_mode}
    return {**engine.compilation_config, **mode}


def _transfer(engine: Engine) -> dict[str, Any]:
    part = engine.disaggregation
    return {} if part is None else {"kv_connector": part.connector, "kv_role": part.kv_role}


def runner_environment(runner: Runner | None) -> dict[str, str]:
    """Environment that chooses the model runner; empty leaves it to vLLM."""
    return {} if runner is None else {RUNNER_VARIABLE: "1" if runner == "v2" else "0"}


def tap_environment(tap_point: TapPoint | None) -> dict[str, str]:
    """Environment that chooses where hidden states are taken; empty where a target has one such place."""
    return {} if tap_point is None else {TAP_VARIABLE: "1" if tap_point == "attn_res_stream" else "0"}


def refuse_typed(extra: Iterable[str]) -> None:
    """Refuse extra arguments that have a field of their own: past the field, no rule would look at them.

    Raises:
        UsageError: Naming the field.
    """
    for word in extra:
        flag = word.partition("=")[0].replace("_", "-")
        plain = f"--{flag.removeprefix('--no-')}" if flag.startswith("--no-") else flag
        # vLLM takes any beginning of a flag that no other flag begins with.
        found = [name for known, name in FIELD_OF_FLAG.items() if _same(plain, known)]
        if found:
            raise UsageError(
                f"'{word}' has a field of its own",
                where="serve.extra_args",
                hint=f"set serve.engine.{found[0]}, or evaluate.live.engine.{found[0]} for arms",
            )


def _same(given: str, known: str) -> bool:
    if not known.startswith("--"):
        return given == known
    inside, _, _ = given.partition(".")  # --attention-config.backend=...
    return inside == known or (len(inside) >= 8 and inside.startswith("--") and known.startswith(inside))
