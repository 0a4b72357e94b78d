"""Xids: errors that the driver wrote into the kernel log since boot."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from tasks.validate.collect.findings import Findings
from tasks.validate.collect.programs import NotInstalled, Unanswered, ask
from tasks.validate.collect.request import ProbeRequest

_LOGS = (
    ("journalctl", "-k", "-b", "-o", "short-iso", "--no-pager", "-q"),
    ("dmesg", "--time-format", "iso"),
)
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]+)\): (\d+)")


def xid_findings(request: ProbeRequest) -> Findings:
    """Xids of the first log that can be read. An empty log is one that may not be read, not a clean one."""
    found, reasons, late = Findings(), [], False
    for argv in _LOGS:
        try:
            answer = ask(argv, request.deadline_s / 3)
        except (NotInstalled, Unanswered) as why:
            late = late or isinstance(why, Unanswered)
            reasons.append(f"{argv[0]}: {why}")
            continue
        if answer.status or not answer.output.strip():
            reasons.append(
                f"{argv[0]}: {answer.why if answer.status else 'no lines that this user may read'}"
            )
            continue
        found.put(
            "host", {"xids": [xid for line in answer.output.splitlines() if (xid := _xid(line))]}, argv[0]
        )
        return found
    if not late:
        found.not_supported.append("host.xids")
    found.errors["host.xids"] = "the kernel log cannot be read (" + "; ".join(reasons) + ")"
    return found


def _xid(line: str) -> dict[str, Any] | None:
    match = _XID.search(line)
    if not match:
        return None
    return {"code": int(match.group(2)), "gpu": match.group(1), "at": _time(line.split(" ", 1)[0])}


def _time(word: str) -> str | None:
    """A log's time as ISO text with a zone."""
    try:
        at = datetime.fromisoformat(word.replace(",", "."))
    except ValueError:
        return None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).isoformat()
