"""The registry of checks: pure functions of facts and requirements. Reading is in `collectors.py`.

A check returns a `Verdict`; the registry adds its id and, if it did not pass, its remedy.
To add one: write a function under `@check(...)` in one of the `*_checks` modules; documentation and
report follow by themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tasks.validate.facts import NodeFacts
from tasks.validate.models import CheckResult, Status
from tasks.validate.requirements import Requirements


@dataclass(frozen=True)
class Verdict:
    """What a check found, without its id and remedy."""

    status: Status
    observed: str
    required: str
    message: str = ""


Rule = Callable[[NodeFacts, Requirements], Verdict]


@dataclass(frozen=True)
class Check:
    """One registered check.

    Args:
        rule: What it requires, for the documentation.
        remedy: What to do if it does not pass.
        user_input: The remedy is at once in the user's hands; a failure ends with the code of bad input.
    """

    id: str
    rule: str
    remedy: str
    run: Rule
    user_input: bool = False


CHECKS: dict[str, Check] = {}


def check(id: str, *, rule: str, remedy: str, user_input: bool = False) -> Callable[[Rule], Rule]:
    """Register a check under `id` (`group.name`)."""

    def register(run: Rule) -> Rule:
        if id in CHECKS:
            raise ValueError(f"check {id} is defined twice")
        CHECKS[id] = Check(id, rule, remedy, run, user_input)
        return run

    return register


def run_checks(facts: NodeFacts, requirements: Requirements) -> tuple[CheckResult, ...]:
    """Run every check, in the order of their ids."""
    results = []
    for id in sorted(CHECKS):
        known = CHECKS[id]
        verdict = known.run(facts, requirements)
        results.append(
            CheckResult(
                id=id,
                status=verdict.status,
                observed=verdict.observed,
                required=verdict.required,
                message=verdict.message,
                remedy=known.remedy if verdict.status in ("fail", "warn") else "",
            )
        )
    return tuple(results)
