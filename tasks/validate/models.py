"""What the validate stage returns."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Status = Literal["pass", "warn", "fail", "skip"]


class CheckResult(BaseModel):
    """Outcome of one check on one node."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    status: Status
    observed: str
    required: str
    message: str
    remedy: str = ""


class ValidationReport(BaseModel):
    """Facts, check results and the worst status."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    facts: dict[str, Any]
    checks: tuple[CheckResult, ...]
    worst: Status
    toolkit_channel: str = "none"
