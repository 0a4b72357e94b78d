"""Processes of a run with command lines, environments and places, and the memory that they need."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from profiles.address import join_address
from profiles.schema import Profile
from profiles.training import Scale
from tasks.errors import ServiceError, UsageError
from tasks.evaluate.arm_plan import DraftFolder, PlannedArm, plan_arms
from tasks.plan.models import PlannedProcess
from tasks.plan.parameters import DTYPE_BYTES
from tasks.plan.target import KnownTarget, parameters_of
from tasks.plan.topology import Place, Topology, spanning_argv
from tasks.processes.registry import without_secrets
from tasks.serve.arms import arm_argv, arm_environment
from tasks.serve.command import layer_ids, master_argv, server_environment, target_argv, target_environment
from tasks.stream.settings import ANSWER_KEY_ENV, API_KEY_ENV, CLIENT_ENVIRONMENT
from tasks.train.command import torchrun_argv, trainer_argv

PYTHON_BYTES = 400 * 10**6
"""A Python process with torch loaded."""
SERVER_BYTES = 3 * 10**9
"""The three processes of a vLLM server on CPU without weights and cache."""
MASTER_BYTES = 60 * 10**6
CONFIG = "CONFIG.json"


@dataclass(frozen=True)
class Sizes:
    """Bytes that the processes' memory follows from.

    Args:
        weights: Of the target, all of them; None where nothing says how large they are.
        trainer: One training rank.
        draft: The draft's weights as a server loads them.
    """

    weights: float | None
    trainer: int
    draft: int


def planned_processes(
    profile: Profile, target: KnownTarget, topology: Topology, sizes: Sizes
) -> tuple[PlannedProcess, ...]:
    """Every process in the order of its start. Ports that a run chooses stand as 0."""
    return (
        *_target(profile, target, topology, sizes),
        *_jobs(profile, topology, sizes),
        *_arms(profile, target, topology, sizes),
    )


def _target(profile: Profile, target: KnownTarget, topology: Topology, sizes: Sizes) -> list[PlannedProcess]:
    """Store master and target; none of them where a running server is used."""
    if profile.serve.kind != "launch":
        return []
    host, port = profile.store.host, profile.store.rpc_port
    layers = layer_ids(profile, target.config.num_hidden_layers)
    argv = target_argv(
        profile,
        target.config.folder,
        layers,
        profile.serve.port,
        join_address(host, port),
        _own_address(profile),
    )
    process = _Maker("target", "serve", "serve", _environment(profile), (API_KEY_ENV,))
    memory = _server_bytes(profile, target, profile.target.dtype, sizes)
    segment = profile.store.segment_bytes
    master = _Maker("store-master", "serve", "serve", {})
    return [
        master.on(topology.serve[0], _master(host, port), MASTER_BYTES),
        *(
            # The first rank writes the hidden states, so the segment is its own.
            process.on(
                place,
                spanning_argv(argv, topology.serve, rank),
                memory + (0 if rank else segment),
                gpu_bytes=_gpu_share(profile, topology, sizes.weights),
                several=len(topology.serve) > 1,
            )
            for rank, place in enumerate(topology.serve)
        ),
    ]


def _jobs(profile: Profile, topology: Topology, sizes: Sizes) -> list[PlannedProcess]:
    """Capture client, trainer and replay, all on the train side."""
    first, on_gpu = topology.train[0], profile.hardware.mode != "none"
    keys = [API_KEY_ENV] if profile.serve.kind == "launch" or profile.serve.api_key_env else []
    keys += [ANSWER_KEY_ENV] if profile.stream.answer_api_key_env else []
    capture = _Maker("capture", "stream", "train", CLIENT_ENVIRONMENT, tuple(keys))
    trainer = _Maker("trainer", "train", "train", {})
    replay = _Maker("replay", "evaluate", "train", {})
    host_of_rank = PYTHON_BYTES if on_gpu else PYTHON_BYTES + sizes.trainer
    buffer = profile.store.local_buffer_bytes
    several = profile.train.scale.nodes > 1
    return [
        capture.on(first, _module("tasks.stream.capture"), PYTHON_BYTES + buffer),
        *(
            trainer.on(
                place,
                argv,
                host_of_rank * profile.train.scale.ranks + profile.train.prefetch_bytes * on_gpu,
                gpu_bytes=sizes.trainer if on_gpu else 0,
                several=several,
            )
            for place, argv in zip(topology.train, _trainer_argvs(profile.train.scale), strict=False)
        ),
        replay.on(
            first,
            _module("tasks.evaluate.replay"),
            PYTHON_BYTES + (0 if on_gpu else sizes.trainer // 4),
            gpu_bytes=sizes.trainer // 4 if on_gpu else 0,
        ),
    ]


def _trainer_argvs(scale: Scale) -> list[tuple[str, ...]]:
    if scale.nodes == 1:
        return [trainer_argv(scale, Path(CONFIG))]
    words = ("tasks.train.run", CONFIG)
    return [torchrun_argv(scale, "RUN", words, node) for node in range(scale.nodes)]


def _arms(profile: Profile, target: KnownTarget, topology: Topology, sizes: Sizes) -> list[PlannedProcess]:
    memory = _server_bytes(profile, target, profile.evaluate.live.dtype, sizes)
    gpu = _gpu_share(profile, topology, sizes.weights)
    found = []
    for arm in planned_arms(profile, target.config.folder):
        environment = arm_environment(profile, arm.speculation.runner)
        process = _Maker(f"arm-{arm.name}", "evaluate", "serve", environment, (API_KEY_ENV,))
        argv = arm_argv(profile, target.config.folder, 0, arm.speculation)
        draft = sizes.draft if gpu and arm.draft is not None else 0
        several = len(topology.serve) > 1
        for rank, place in enumerate(topology.serve):
            spread = spanning_argv(argv, topology.serve, rank)
            found.append(process.on(place, spread, memory, gpu_bytes=gpu + draft, several=several))
    return found


def planned_arms(profile: Profile, target_dir: Path) -> list[PlannedArm]:
    """Arms that an evaluation will start; whether there is an incumbent is known only then."""
    arms = plan_arms(profile, target_dir, DraftFolder(Path("DRAFT")), None, "known when it is measured")
    return [arm for arm in arms if not arm.unavailable]


def _server_bytes(profile: Profile, target: KnownTarget, dtype: str, sizes: Sizes) -> int:
    """Host memory of a server on one machine; with GPUs the weights and the cache are there."""
    if profile.hardware.mode != "none":
        return SERVER_BYTES
    cache = int((profile.serve.kv_cache_gib or 4.0) * 2**30)
    return SERVER_BYTES + parameters_of(target.config) * DTYPE_BYTES[dtype] + cache


def _gpu_share(profile: Profile, topology: Topology, weights: float | None) -> int:
    """Weights on each GPU of a server that all serving machines make up; 0 where a size is not known."""
    gpus = sum(place.gpus or 0 for place in topology.serve)
    return int((weights or 0) / gpus) if gpus and profile.hardware.mode != "none" else 0


def _own_address(profile: Profile) -> str:
    """What the writer gives as its own; of an interface only its node knows the address."""
    return f"ADDRESS-OF-{profile.store.interface}" if profile.store.interface else profile.store.host


def _environment(profile: Profile) -> dict[str, str]:
    try:
        return target_environment(profile)
    except UsageError:  # the interface is on another machine than this one
        own = {"MC_TCP_BIND_ADDRESS": _own_address(profile)}
        return {**own, **server_environment(profile)}


def processes_at_once(processes: Sequence[PlannedProcess], *, overlaps: bool) -> list[PlannedProcess]:
    """Target, store and capture run together, with `stream.overlap` also the trainer; others run alone."""
    stages = ("serve", "stream", "train") if overlaps else ("serve", "stream")
    return [process for process in processes if process.stage in stages]


def memory_peak(processes: Sequence[PlannedProcess], *, overlaps: bool = False) -> int:
    """Bytes of host memory needed at once."""
    together = sum(one.memory_bytes for one in processes_at_once(processes, overlaps=overlaps))
    return max([together, *(one.memory_bytes for one in processes)], default=0)


def gpu_peak(processes: Sequence[PlannedProcess], *, overlaps: bool = False) -> int:
    """Bytes of one GPU needed at once, of processes on the same machine."""
    together = sum(one.gpu_bytes for one in processes_at_once(processes, overlaps=overlaps))
    return max([together, *(one.gpu_bytes for one in processes)], default=0)


@dataclass(frozen=True)
class _Maker:
    """What the processes of one kind share."""

    name: str
    stage: str
    role: str
    environment: Mapping[str, str]
    secrets: tuple[str, ...] = ()

    def on(
        self,
        place: Place,
        argv: Sequence[str],
        memory_bytes: int,
        *,
        gpu_bytes: int = 0,
        several: bool = False,
    ) -> PlannedProcess:
        """The process on one machine; its number is part of its name where several machines have one."""
        words = ["python" if word == sys.executable else word for word in without_secrets(tuple(argv))]
        words = [os.path.basename(words[0]), *words[1:]]
        return PlannedProcess(
            name=f"{self.name}-{place.rank}" if several else self.name,
            stage=self.stage,
            role=self.role,
            node=place.name,
            command=shlex.join(words),
            argv=tuple(words),
            environment=dict(self.environment),
            secret_environment=self.secrets,
            memory_bytes=memory_bytes,
            gpu_bytes=gpu_bytes,
        )


def _module(name: str) -> tuple[str, ...]:
    return (sys.executable, "-m", name, CONFIG)


def _master(host: str, port: int) -> tuple[str, ...]:
    try:
        return master_argv(host, port, 0)
    except ServiceError:  # a plan can be made where the store is not installed
        return ("mooncake_master", f"-rpc_address={host}", f"-rpc_port={port}", f"-metrics_host={host}")
