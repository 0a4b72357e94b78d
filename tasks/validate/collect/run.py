"""All collectors of one node, each in a process with a deadline, joined to one set of findings."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tasks.validate.collect.findings import Findings, merge, unobserved
from tasks.validate.collect.programs import NotInstalled, Unanswered, ask
from tasks.validate.collect.request import ProbeRequest
from tasks.validate.collect.smi_xml import SOURCE

ORDER = ("nvml", "smi", "system", "toolkit", "nccl", "imex", "rdma", "network", "xid", "weights", "disk")
"""Collectors by rank: where two observed the same fact, the first one's stands."""
_ASKED = ("nvml", "smi", SOURCE)
"""Where the deadline of a call for GPUs is recorded."""
OF_GPUS = ("nvml", "smi", "toolkit", "nccl", "imex", "xid")
_ROOT = Path(__file__).resolve().parents[3]
_STARTED_S = 2.0
"""Time that a collector may take beside the calls whose deadline it keeps itself."""


def collect_all(request: ProbeRequest) -> Findings:
    """Run the collectors at once and join what they found; a hung one costs its own facts only."""
    unasked = (() if request.gpus else OF_GPUS) + (() if request.weights_path else ("weights",))
    unasked += () if request.run_root else ("disk",)
    names = [name for name in ORDER if name not in unasked]
    with ThreadPoolExecutor(len(names)) as threads:
        parts = list(threads.map(lambda name: _in_process(name, request), names))
    found = Findings()
    for part in parts:
        found = merge(found, part)
    if request.gpus:
        _conclude(found)
    found.not_supported = list(unobserved(found.facts, found.not_supported))
    return found


def _in_process(name: str, request: ProbeRequest) -> Findings:
    of_gpu = name in ("nvml", "smi")
    deadline_s = request.gpu_deadline_s if of_gpu else request.deadline_s
    argv = (sys.executable, "-m", "tasks.validate.collect.child", name)
    extra_s = _STARTED_S if name != "nvml" else 0.0  # so that the deadlines inside it end first
    try:
        answer = ask(argv, deadline_s + extra_s, request.to_json(), environment())
        return Findings.from_json(answer.output) if answer.output else Findings(errors={name: answer.why})
    except (NotInstalled, Unanswered, ValueError) as why:
        return Findings(errors={name: str(why)})


def environment() -> dict[str, str]:
    """With this project on the path: it need not be installed where the probe runs."""
    path = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": f"{_ROOT}{os.pathsep}{path}" if path else str(_ROOT)}


def _conclude(found: Findings) -> None:
    """What follows from several collectors together.

    `nvidia-smi` or NVML alone cannot tell *no driver* from *no answer*: a machine whose kernel has no nvidia
    module enumerates no GPU; where the module is loaded and nobody answered, GPUs are not observed.
    """
    driver = found.facts.setdefault("driver", {})
    gpus = found.facts.get("gpus")
    if gpus:
        driver["loaded"] = True
    no_module = driver.get("module_flavour") == "none"
    hung = [f"{name} {why}" for name in _ASKED if "timed out" in (why := found.errors.get(name, ""))]
    if gpus is not None or "driver" in found.errors:
        return
    if hung:
        found.errors.setdefault("gpus", ", ".join(hung))
    elif no_module and driver.get("loaded") is not True:
        driver["loaded"] = False
        found.facts["gpus"] = []
    elif not no_module and driver.get("loaded") is False:
        found.errors["driver"] = (
            "the nvidia kernel module is loaded, but its library libnvidia-ml.so.1 is not found: "
            "install the driver's user-space packages, or start the container with its GPUs"
        )
