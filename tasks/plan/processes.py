"""Processes of a run with their command lines, and the memory that is needed at the same time."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from profiles.address import join_address
from profiles.schema import Profile
from tasks.errors import ServiceError
from tasks.evaluate.arm_plan import DraftFolder, PlannedArm, plan_arms
from tasks.plan.models import PlannedProcess
from tasks.plan.parameters import DTYPE_BYTES
from tasks.serve.arms import arm_argv
from tasks.serve.command import layer_ids, master_argv, target_argv
from tasks.serve.target_config import TargetConfig

PYTHON_BYTES = 400 * 10**6
"""A Python process with torch loaded."""
SERVER_BYTES = 3 * 10**9
"""The three processes of a vLLM server on CPU without weights and cache."""
MASTER_BYTES = 60 * 10**6


def planned_processes(profile: Profile, target: TargetConfig, train_bytes: int) -> tuple[PlannedProcess, ...]:
    """Every process in the order of its start. Ports that a run chooses stand as 0."""
    host, folder = profile.store.host, target.folder
    weights = parameters_of(target)
    cache = int((profile.serve.kv_cache_gib or 4.0) * 2**30)
    served = SERVER_BYTES + weights * DTYPE_BYTES[profile.target.dtype] + cache + profile.store.segment_bytes
    arm = SERVER_BYTES + weights * DTYPE_BYTES[profile.evaluate.live.dtype] + cache
    master = join_address(host, profile.store.rpc_port)
    layers = layer_ids(profile, target.num_hidden_layers)
    processes = [
        _process(
            "capture",
            "stream",
            "train",
            _module("tasks.stream.capture"),
            PYTHON_BYTES + profile.store.local_buffer_bytes,
        ),
        _process("trainer", "train", "train", _module("tasks.train.run"), PYTHON_BYTES + train_bytes),
        _process(
            "replay", "evaluate", "train", _module("tasks.evaluate.replay"), PYTHON_BYTES + train_bytes // 4
        ),
        *(
            _process(f"arm-{one.name}", "evaluate", "serve", _arm(profile, folder, one), arm)
            for one in planned_arms(profile, folder)
        ),
    ]
    if profile.serve.kind == "launch":
        argv = target_argv(profile, folder, layers, profile.serve.port, master)
        processes[:0] = [
            _process("store-master", "serve", "serve", _master(host, profile.store.rpc_port), MASTER_BYTES),
            _process("target", "serve", "serve", argv, served),
        ]
    return tuple(processes)


def planned_arms(profile: Profile, target_dir: Path) -> list[PlannedArm]:
    """Arms that an evaluation will start; whether there is an incumbent is known only then."""
    arms = plan_arms(profile, target_dir, DraftFolder(Path("DRAFT")), None, "known when it is measured")
    return [arm for arm in arms if not arm.unavailable]


def _arm(profile: Profile, target_dir: Path, arm: PlannedArm) -> tuple[str, ...]:
    return arm_argv(profile, target_dir, 0, arm.speculation)


def processes_at_once(processes: Sequence[PlannedProcess], *, overlaps: bool) -> list[PlannedProcess]:
    """Target, store and capture run together, with `stream.overlap` also the trainer; others run alone."""
    stages = ("serve", "stream", "train") if overlaps else ("serve", "stream")
    return [process for process in processes if process.stage in stages]


def memory_peak(processes: Sequence[PlannedProcess], *, overlaps: bool = False) -> int:
    """Bytes needed at once."""
    together = sum(one.memory_bytes for one in processes_at_once(processes, overlaps=overlaps))
    return max([together, *(one.memory_bytes for one in processes)])


def parameters_of(target: TargetConfig) -> int:
    """Parameters of a dense decoder, near enough for memory: attention, MLP and embeddings."""
    hidden, heads, kv = target.hidden_size, target.num_attention_heads, target.num_key_value_heads
    layer = 2 * hidden * target.head_dim * (heads + kv) + 3 * hidden * (
        target.intermediate_size or 4 * hidden
    )
    tables = 1 if target.tie_word_embeddings else 2
    return target.num_hidden_layers * layer + tables * target.vocab_size * hidden


def _process(name: str, stage: str, role: str, argv: Sequence[str], memory_bytes: int) -> PlannedProcess:
    words = ["python" if word == sys.executable else word for word in argv]
    words = [os.path.basename(words[0]), *words[1:]]
    return PlannedProcess(
        name=name, stage=stage, role=role, command=shlex.join(words), memory_bytes=memory_bytes
    )


def _module(name: str) -> tuple[str, ...]:
    return (sys.executable, "-m", name, "CONFIG.json")


def _master(host: str, port: int) -> tuple[str, ...]:
    try:
        return master_argv(host, port, 0)
    except ServiceError:  # a plan can be made where the store is not installed
        return ("mooncake_master", f"-rpc_address={host}", f"-rpc_port={port}", f"-metrics_host={host}")
