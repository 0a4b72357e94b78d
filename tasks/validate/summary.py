"""Check results as people read them: worst first, and what says the same on several nodes said once. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tasks.validate.models import WORST_FIRST, CheckResult, Status, ValidationReport
from tasks.validate.registry import ALL

ROLE_WORDS = {"serve": "serving nodes", "train": "training nodes"}
COUNT_WORDS: dict[Status, str] = {"fail": "failed", "warn": "warning", "pass": "passed", "skip": "skipped"}
_SHOWN_NODES = 4
_SHOWN_VALUES = 3


@dataclass(frozen=True)
class Line:
    """Results that say the same.

    Args:
        ids: The check; for skipped ones all checks with one reason.
        where: Nodes or role; empty if there is one node, or for what concerns the whole plan.
    """

    status: Status
    ids: tuple[str, ...]
    where: str
    observed: str
    required: str
    message: str
    remedy: str
    evidence: str

    @property
    def name(self) -> str:
        return ", ".join(self.ids)

    def told(self) -> list[str]:
        """What was found and what to do, as indented lines of an error."""
        where = f" on {self.where}" if self.where else ""
        lines = [f"  {self.name}{where}: observed {self.observed}, required {self.required}"]
        if self.message:
            lines.append(f"    {self.message}")
        if self.remedy:
            lines.append(f"    to do: {self.remedy}")
        return lines


def summary_lines(checks: Sequence[CheckResult]) -> tuple[Line, ...]:
    """All results of a report, worst first."""
    nodes = {check.subject for check in checks if check.scope == "node"}
    alike: dict[tuple[str, ...], list[CheckResult]] = {}
    for check in checks:
        alike.setdefault(_key(check), []).append(check)
    lines = [_line(group, nodes) for group in alike.values()]
    ordered = sorted(lines, key=lambda line: WORST_FIRST.index(line.status))
    return (*(line for line in ordered if line.status != "skip"), *_by_reason(ordered))


def _key(check: CheckResult) -> tuple[str, ...]:
    """What makes one line: a pass need not be equal on all nodes, the reason of a skip must be."""
    told: tuple[str, ...] = ()
    if check.status in ("fail", "warn"):
        told = (check.observed, check.required, check.message, check.remedy)
    elif check.status == "skip":
        told = (check.message,)
    return (check.status, check.id, *told)


def _line(group: Sequence[CheckResult], nodes: set[str]) -> Line:
    first = group[0]
    return Line(
        status=first.status,
        ids=(first.id,),
        where=_where([check.subject for check in group], first.scope == "node", nodes),
        observed=_values([check.observed for check in group]),
        required=_values([check.required for check in group]),
        message=_values([check.message for check in group]),
        remedy=first.remedy,
        evidence=first.evidence,
    )


def _values(texts: Sequence[str]) -> str:
    """Different texts, once each, the first few of them."""
    found = [text for text in dict.fromkeys(texts) if text]
    more = f" and {len(found) - _SHOWN_VALUES} more" if len(found) > _SHOWN_VALUES else ""
    return " | ".join(found[:_SHOWN_VALUES]) + more


def _where(subjects: Sequence[str], of_nodes: bool, nodes: set[str]) -> str:
    if not of_nodes:
        return ", ".join(ROLE_WORDS.get(subject, subject) for subject in subjects if subject not in ("", ALL))
    if len(nodes) < 2:
        return ""
    if set(subjects) == nodes:
        return "all nodes"
    more = f" and {len(subjects) - _SHOWN_NODES} more" if len(subjects) > _SHOWN_NODES else ""
    return ", ".join(subjects[:_SHOWN_NODES]) + more


def _by_reason(lines: Sequence[Line]) -> tuple[Line, ...]:
    """Skipped checks, one line for each reason; most are skipped for one or two."""
    reasons: dict[tuple[str, str], Line] = {}
    for line in lines:
        if line.status == "skip":
            key = (line.message, line.where)
            known = reasons.get(key)
            reasons[key] = replace(known, ids=(*known.ids, *line.ids)) if known else line
    return tuple(reasons.values())


def counts(checks: Sequence[CheckResult]) -> dict[Status, int]:
    """Results by status, worst first."""
    found = Counter(check.status for check in checks)
    return {status: found[status] for status in WORST_FIRST}


def count_text(checks: Sequence[CheckResult]) -> str:
    """`2 failed, 1 warning, 30 passed, 17 skipped`; what did not occur is left out."""

    def words(status: Status, number: int) -> str:
        return f"{number} {COUNT_WORDS[status]}{'s' if status == 'warn' and number > 1 else ''}"

    return ", ".join(words(status, n) for status, n in counts(checks).items() if n) or "no check"


def title(report: ValidationReport) -> str:
    """One sentence for the whole report, failures by name."""
    failed = sorted({check.id for check in report.checks if check.status == "fail"})
    names = f": {', '.join(failed)}" if failed else ""
    nodes = len(report.records)
    where = f" on {nodes} nodes" if nodes > 1 else ""
    return f"Checks before the start{where}: {count_text(report.checks)}{f'. Failed{names}' if names else ''}"
