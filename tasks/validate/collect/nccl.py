"""Version of the NCCL library that a process of this environment loads."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.metadata
import os
from collections.abc import Mapping

from tasks.validate.collect.findings import Findings

_DISTRIBUTIONS = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")
_LIBRARY = "libnccl.so.2"


def nccl_findings(environment: Mapping[str, str] = os.environ) -> Findings:
    """`ncclGetVersion` of the library that vLLM would take; nothing if there is none."""
    found = Findings()
    path = environment.get("VLLM_NCCL_SO_PATH") or _installed() or ctypes.util.find_library("nccl")
    if not path:
        return found
    code = ctypes.c_int()
    try:
        status = ctypes.CDLL(path).ncclGetVersion(ctypes.byref(code))
    except (OSError, AttributeError) as error:
        found.errors["versions.nccl"] = str(error)
        return found
    if status == 0:
        found.put("versions", {"nccl": version(code.value)}, "ncclGetVersion")
    return found


def version(code: int) -> str:
    """22809 -> 2.28.9; before 2.9 the minor had two digits less."""
    if code < 10000:
        return f"{code // 1000}.{code % 1000 // 100}.{code % 100}"
    return f"{code // 10000}.{code % 10000 // 100}.{code % 100}"


def _installed() -> str | None:
    """The library inside an installed wheel."""
    for name in _DISTRIBUTIONS:
        try:
            files = importlib.metadata.files(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        found = next((str(file.locate()) for file in files if file.name == _LIBRARY), None)
        if found:
            return found
    return None
