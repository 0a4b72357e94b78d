"""What a vLLM server needs in addition where there is no GPU."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

from profiles.schema import Profile

TRITON_FOLDER = Path(__file__).with_name("cpu_triton")


def usable_cores() -> int:
    return len(os.sched_getaffinity(0))


def intel_openmp() -> Path | None:
    """Intel's OpenMP runtime, which the CPU engine depends on; None if it is not there."""
    path = Path(sys.prefix) / "lib" / "libiomp5.so"
    return path if path.is_file() else None


def cpu_arguments(profile: Profile) -> tuple[str, ...]:
    """Arguments of every server on CPU: no compilation, which costs more than it saves here."""
    return ("--enforce-eager",)


def cpu_environment(profile: Profile) -> dict[str, str]:
    """Environment of every server on CPU."""
    env = {}
    if profile.serve.kv_cache_gib is not None:
        env["VLLM_CPU_KVCACHE_SPACE"] = str(math.ceil(profile.serve.kv_cache_gib))  # whole GiB only
    return env


def interpreter_environment() -> dict[str, str]:
    """Environment that runs the V2 model runner's Triton kernels in the interpreter."""
    inherited = os.environ.get("PYTHONPATH")
    folders = [str(TRITON_FOLDER), *([inherited] if inherited else [])]
    return {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(folders)}
