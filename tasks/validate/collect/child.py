"""One collector as a process: `python -m tasks.validate.collect.child NAME` reads a request, prints findings.

A process can be given up when a call into the driver or a dead file system never returns; a thread cannot.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable

from tasks.validate.collect.findings import Findings
from tasks.validate.collect.request import ProbeRequest

_PACKAGE = "tasks.validate.collect"


def collect_one(name: str, request: ProbeRequest) -> Findings:
    """Findings of one collector; what it raises becomes its error."""
    try:
        module = importlib.import_module(f"{_PACKAGE}.{name}")
        read: Callable[..., Findings] = getattr(module, f"{name}_findings")
        return read() if name in ("nvml", "nccl") else read(request)
    except Exception as error:  # one collector must not hide what the others found
        return Findings(errors={name: f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    print(collect_one(sys.argv[1], ProbeRequest.from_json(sys.stdin.read())).to_json())
