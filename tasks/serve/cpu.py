"""What a vLLM server needs in addition where there is no GPU."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

from profiles.evaluation import engine_of_arms
from profiles.schema import Profile

TRITON_FOLDER = Path(__file__).with_name("cpu_triton")


def usable_cores() -> int:
    return len(os.sched_getaffinity(0))


def intel_openmp() -> Path | None:
    """Intel's OpenMP runtime, which the CPU engine depends on; None if it is not there."""
    path = Path(sys.prefix) / "lib" / "libiomp5.so"
    return path if path.is_file() else None


def cpu_arguments(profile: Profile) -> tuple[str, ...]:
    """Arguments of every server on CPU.

    No compilation, which costs more than it saves here. One engine process instead of an engine and a
    worker, unless the profile spreads the model: the two would import everything twice and talk through
    a queue on which both spin, which takes half of two cores.
    """
    executor = ("--distributed-executor-backend", "uni") if _one_process(profile) else ()
    return ("--enforce-eager", *executor)


def cpu_environment(profile: Profile) -> dict[str, str]:
    """Environment of every server on CPU."""
    env = {}
    if profile.serve.kv_cache_gib is not None:
        env["VLLM_CPU_KVCACHE_SPACE"] = str(math.ceil(profile.serve.kv_cache_gib))  # whole GiB only
    if _one_process(profile):
        env["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # else vLLM turns "uni" back into "mp" on CPU
        env["OMP_NUM_THREADS"] = str(usable_cores())  # else it serves with one thread
    openmp = intel_openmp()
    if openmp is not None:
        env["LD_PRELOAD"] = os.pathsep.join([str(openmp), *os.environ.get("LD_PRELOAD", "").split()])
    return env


def _one_process(profile: Profile) -> bool:
    arms = engine_of_arms(profile.evaluate.live, profile.serve)
    return profile.serve.engine.world == arms.world == 1


def interpreter_environment() -> dict[str, str]:
    """Environment that runs the V2 model runner's Triton kernels in the interpreter."""
    inherited = os.environ.get("PYTHONPATH")
    folders = [str(TRITON_FOLDER), *([inherited] if inherited else [])]
    # The interpreter is one Python thread. Between its matrix products OpenMP's threads would spin for 200 ms
    # each time, on the core that the API server and its client need.
    idle = {"KMP_BLOCKTIME": "1"}
    return {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(folders), **idle}
