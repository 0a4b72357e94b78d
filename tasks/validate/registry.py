"""The registry of checks: pure functions of facts and requirements. Reading is in the collectors.

A node check looks at one node, a group check at all nodes at once. Both return verdicts; the registry adds
id, subject, evidence and, if the check did not pass, its remedy. To add one: write a function under
`@node_check(...)` or `@group_check(...)` in one of the `*_checks` modules; documentation and report follow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tasks.validate.facts import NodeFacts
from tasks.validate.models import WORST_FIRST, CheckResult, Scope, Status
from tasks.validate.requirements import Requirements
from tasks.validate.verdicts import Verdict, skip, worst_of

Nodes = Sequence[NodeFacts]
NodeRule = Callable[[NodeFacts, Requirements], Verdict]
GroupRule = Callable[[Nodes, Requirements], Mapping[str, Verdict]]
REACHABLE = "node.reachable"
ALL = "plan"
"""Subject of a group check that concerns all nodes."""


@dataclass(frozen=True)
class Check:
    """One registered check.

    Args:
        rule: What it requires, for the documentation.
        remedy: What to do if it does not pass.
        severity: What it usually answers if it does not pass, for the documentation: `fail`, `warn` or both.
        user_input: The remedy is at once in the user's hands; a failure ends with the code of bad input.
    """

    id: str
    scope: Scope
    rule: str
    remedy: str
    severity: str
    user_input: bool
    node: NodeRule | None = None
    group: GroupRule | None = None


CHECKS: dict[str, Check] = {}


def node_check(
    id: str, *, rule: str, remedy: str, severity: str = "fail", user_input: bool = False
) -> Callable[[NodeRule], NodeRule]:
    """Register a check of one node under `id` (`group.name`)."""

    def register(run: NodeRule) -> NodeRule:
        _add(Check(id, "node", rule, remedy, severity, user_input, node=run))
        return run

    return register


def group_check(
    id: str, *, rule: str, remedy: str, severity: str = "fail", user_input: bool = False
) -> Callable[[GroupRule], GroupRule]:
    """Register a check of all nodes; it returns a verdict for each subject, at least one."""

    def register(run: GroupRule) -> GroupRule:
        _add(Check(id, "group", rule, remedy, severity, user_input, group=run))
        return run

    return register


def _add(check: Check) -> None:
    if check.id in CHECKS:
        raise ValueError(f"check {check.id} is defined twice")
    CHECKS[check.id] = check


def judge(facts: Nodes, requirements: Requirements) -> tuple[CheckResult, ...]:
    """Run every check on all nodes of a run.

    Args:
        facts: One record for each node, in any order.

    Returns:
        Results, worst first; then by id and subject, so that the order of the nodes does not show.
    """
    nodes = sorted(facts, key=lambda node: node.node_id)
    results = []
    for check in CHECKS.values():
        if check.group is not None:
            found = check.group(nodes, requirements)
            results += [_result(check, subject, one, nodes, requirements) for subject, one in found.items()]
        for node in nodes if check.node is not None else ():
            verdict = _of_node(check, node, requirements)
            results.append(_result(check, node.node_id, verdict, (node,), requirements))
    return tuple(sorted(results, key=lambda r: (WORST_FIRST.index(r.status), r.id, r.subject)))


def worst(results: Sequence[CheckResult]) -> Status:
    """The worst status; a report of nothing but skipped checks is `skip`."""
    return min((result.status for result in results), key=WORST_FIRST.index, default="skip")


def _of_node(check: Check, node: NodeFacts, need: Requirements) -> Verdict:
    """The worst verdict over the roles that the node fills."""
    assert check.node is not None
    if "node" in node.errors and check.id != REACHABLE:
        return skip(f"the node could not be read; see {REACHABLE}", observed="not observed")
    return worst_of([check.node(node, dataclasses.replace(need, role=role)) for role in node.roles])


def _result(check: Check, subject: str, verdict: Verdict, nodes: Nodes, need: Requirements) -> CheckResult:
    status, message = verdict.status, verdict.message
    override = need.hardware.severity_overrides.get(check.id)
    if override and status in ("fail", "warn") and override != status:
        message = f"{message} ({status} taken as {override}: hardware.severity_overrides)"
        status = override
    return CheckResult(
        id=check.id,
        scope=check.scope,
        subject=subject,
        status=status,
        observed=verdict.observed,
        required=verdict.required,
        message=message,
        remedy=(verdict.remedy or check.remedy) if status in ("fail", "warn") else "",
        evidence=_with_sources(verdict.evidence, nodes),
    )


def _with_sources(evidence: str, nodes: Nodes) -> str:
    """`driver.kmd_version` -> `driver.kmd_version (nvml)`."""
    group = evidence.split(".")[0].split("[")[0]
    sources = sorted({source for node in nodes if (source := node.sources.get(group))})
    return f"{evidence} ({', '.join(sources)})" if evidence and sources else evidence
