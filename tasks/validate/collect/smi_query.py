"""`nvidia-smi --query-gpu`: what the XML does not have, and a second way to the rest."""

from __future__ import annotations

import csv
import re
import time
from typing import Any

from tasks.validate.collect.findings import Findings
from tasks.validate.collect.programs import Answer, ask
from tasks.validate.collect.unobserved import not_offered, refused

SOURCE = "nvidia-smi --query-gpu"
FIELDS = (
    "index",
    "uuid",
    "pci.bus_id",
    "name",
    "driver_version",
    "kmd_version",
    "compute_cap",
    "memory.total",
    "memory.reserved",
    "memory.used",
    "vbios_version",
    "fabric.state",
    "fabric.status",
)
_UNKNOWN_FIELD = re.compile(r'Field "([^"]+)" is not a valid field to query')


def query_gpus(program: str, deadline_s: float) -> Findings:
    """Ask for all fields; one that this driver does not know is left out and the rest asked for again.

    Raises:
        NotInstalled, Unanswered: As `programs.ask`.
    """
    fields = list(FIELDS)
    ends = time.monotonic() + deadline_s
    while True:
        argv = (program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")
        answer = ask(argv, max(0.1, ends - time.monotonic()))
        unknown = _UNKNOWN_FIELD.search(answer.output + answer.complaint)
        if not unknown or unknown.group(1) not in fields:
            return _parse(answer, fields)
        fields.remove(unknown.group(1))


def _parse(answer: Answer, fields: list[str]) -> Findings:
    """Rows of GPUs that answered. Why a call was refused, the XML's collector says once for both."""
    found = Findings()
    gpus = []
    for row in csv.reader(answer.output.splitlines(), skipinitialspace=True):
        cells = {name: cell.strip() for name, cell in zip(fields, row, strict=False)}
        if len(row) != len(fields) or not cells["index"].isdigit():
            continue
        gpus.append(_gpu(cells, found))
        version = _word(cells.get("driver_version")) or _word(cells.get("kmd_version"))
        found.put("driver", {"loaded": True, "kmd_version": version}, SOURCE)
    if gpus:
        found.facts["gpus"] = gpus
        found.sources["gpus"] = SOURCE
    return found


def _gpu(cells: dict[str, str], found: Findings) -> dict[str, Any]:
    index = int(cells["index"])
    capability = _word(cells.get("compute_cap"))
    if capability is None:
        found.not_supported.append(f"gpus[{index}].compute_capability")
    bus_id = _word(cells.get("pci.bus_id"))
    state = _word(cells.get("fabric.state"))
    return {
        "index": index,
        "uuid": _word(cells.get("uuid")),
        "bus_id": bus_id and bus_id.upper(),
        "name": _word(cells.get("name")),
        "vbios": _word(cells.get("vbios_version")),
        "compute_capability": [int(part) for part in capability.split(".")] if capability else None,
        "memory_total_mib": _number(cells.get("memory.total")),
        "memory_reserved_mib": _number(cells.get("memory.reserved")),
        "memory_used_mib": _number(cells.get("memory.used")),
        "fabric": {
            "state": state,
            "status": _word(cells.get("fabric.status")) if state == "Completed" else None,
        },
    }


def _word(cell: str | None) -> str | None:
    return None if not cell or not_offered(cell) or refused(cell) else cell


def _number(cell: str | None) -> int | None:
    word = _word(cell)
    return int(word) if word and word.isdigit() else None
