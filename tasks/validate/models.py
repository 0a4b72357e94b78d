"""What the validate stage returns."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Status = Literal["pass", "warn", "fail", "skip"]
Scope = Literal["node", "group"]
WORST_FIRST: tuple[Status, ...] = ("fail", "warn", "pass", "skip")


class CheckResult(BaseModel):
    """Outcome of one check on one node, or on all nodes of a group."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    scope: Scope = "node"
    subject: str = ""
    """Node, or for a group its role; `plan` for what concerns all."""
    status: Status
    observed: str
    required: str
    message: str
    remedy: str = ""
    evidence: str = ""
    """Which facts decided, and where they came from."""


class ValidationReport(BaseModel):
    """Facts, check results and the worst status."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    facts: dict[str, Any]
    """Of the first node, and of the input."""
    nodes: tuple[dict[str, Any], ...] = ()
    """Facts of every node, where there is more than one."""
    checks: tuple[CheckResult, ...]
    worst: Status
    toolkit_channel: str = "none"
    """`none`, `release`, or `preview`: no speed measured with a preview is published."""

    @property
    def records(self) -> tuple[dict[str, Any], ...]:
        """Facts of every node, as `NodeFacts` in JSON; empty if there are none."""
        own = {name: value for name, value in self.facts.items() if name != "inputs"}
        return self.nodes or ((own,) if own else ())
