"""Everything that `nvidia-smi` is asked, at once and with a deadline. Never its banner: R610 renamed that."""

from __future__ import annotations

import ctypes
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tasks.validate.collect import smi_query, smi_xml
from tasks.validate.collect.findings import Findings, merge
from tasks.validate.collect.nvml import MISMATCH
from tasks.validate.collect.programs import Answer, NotInstalled, Unanswered, ask
from tasks.validate.collect.request import ProbeRequest
from tasks.validate.collect.smi_links import parse_links, parse_topology

PROGRAM = "nvidia-smi"
_LIBRARY_VERSION = re.compile(r"NVML library version: ([\d.]+)")
_DEAD = ("has failed because it couldn't communicate", "Driver Not Loaded", "Failed to initialize NVML")


def smi_findings(request: ProbeRequest) -> Findings:
    """Facts of `nvidia-smi`; empty if it is not installed, which is no error."""
    deadline_s = request.gpu_deadline_s
    with ThreadPoolExecutor(5) as calls:
        xml = calls.submit(_xml, deadline_s)
        query = calls.submit(_query, deadline_s)
        links = calls.submit(_text, ("nvlink", "-s"), deadline_s)
        topology = calls.submit(_text, ("topo", "-m"), deadline_s)
        p2p = calls.submit(_text, ("topo", "-p2p", "n"), deadline_s)
    # The query first: it has the driver's indices, the XML only the order of the GPUs that answered.
    found = merge(query.result(), xml.result())
    if found.facts:
        found.put("driver", {"umd_version": _library_version()}, "libnvidia-ml.so.1")
    for more in (parse_links(links.result()), parse_topology(topology.result(), p2p.result())):
        found = merge(found, more)
    for gpu in found.facts.get("gpus") or ():
        _far_ends(gpu)
    return found


def _far_ends(gpu: dict[str, Any]) -> None:
    """`nvlink -s` does not say where links end; the GPU's place in the rack does, for all at once."""
    if gpu.pop("peer_type", None) == "Switch Connected":
        for link in gpu.get("nvlinks") or ():
            link.setdefault("remote", "switch")


def _library_version() -> str | None:
    """Version of the user-space library, asked without a binding and without touching a GPU."""
    text = ctypes.create_string_buffer(96)
    try:
        status = ctypes.CDLL("libnvidia-ml.so.1").nvmlSystemGetNVMLVersion(text, len(text))
    except (OSError, AttributeError):
        return None
    parts = text.value.decode("ascii", "replace").split(".")
    return ".".join(parts[1:]) if status == 0 and len(parts) >= 3 else None


def _xml(deadline_s: float) -> Findings:
    try:
        answer = ask((PROGRAM, "-q", "-x"), deadline_s)
    except NotInstalled:
        return Findings()
    except Unanswered as why:
        return Findings(errors={smi_xml.SOURCE: str(why)})
    if answer.status and "<nvidia_smi_log" not in answer.output:
        return _refused(answer)
    return smi_xml.parse_xml(answer.output + answer.complaint)


def _refused(answer: Answer) -> Findings:
    """Why the driver did not answer. Only its own words are facts: no answer is not *no GPU*."""
    words = f"{answer.complaint}\n{answer.output}"
    if "No devices were found" in words:
        return smi_xml.parse_xml(words)
    found = Findings()
    version = _LIBRARY_VERSION.search(words)
    dead = any(word in words for word in _DEAD)
    values = {"loaded": False if dead else None, "umd_version": version.group(1) if version else None}
    found.put("driver", values, smi_xml.SOURCE)
    mismatch = "version mismatch" in words.lower()
    found.errors["driver"] = f"{answer.why}: {MISMATCH}" if mismatch else f"nvidia-smi: {answer.why}"
    return found


def _query(deadline_s: float) -> Findings:
    try:
        return smi_query.query_gpus(PROGRAM, deadline_s)
    except NotInstalled:
        return Findings()
    except Unanswered as why:
        return Findings(errors={smi_query.SOURCE: str(why)})


def _text(arguments: tuple[str, ...], deadline_s: float) -> str:
    """What a call prints, or nothing: links and paths are then not observed."""
    try:
        answer = ask((PROGRAM, *arguments), deadline_s)
    except (NotInstalled, Unanswered):
        return ""
    return "" if answer.status else answer.output
