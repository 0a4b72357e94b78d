"""What a flow run of `evaluate-dspark` measures: from its parameters, or from the run that it resumes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from flows.finding import run_of_flow_run
from flows.opening import flow_run_of_now
from profiles.load import ProfileProblem
from profiles.overrides import ProfileOverrides, override_values
from profiles.schema import Profile
from tasks.errors import ProfileError
from tasks.evaluate.alone import Measuring, measuring, measuring_of, overrides_for
from tasks.evaluate.attach import arms_of
from tasks.run_folder import open_run, run_root

EVALUATES = "evaluates"
"""Fact of a run that only measures: what it measures."""


@dataclass(frozen=True)
class Asked:
    """What a flow run has to do."""

    measuring: Measuring
    overrides: BaseModel | None
    run_id: str | None


def asked_for(
    draft: str | None,
    arms: Mapping[str, str],
    arm_keys: Mapping[str, str],
    profile: str | Profile,
    target: str | None,
    prompts: Sequence[str],
    full: bool,
    overrides: BaseModel | None,
    run_id: str | None,
) -> Asked:
    """What is measured. A run that is resumed, or whose flow run is retried, measures what it began with.

    Raises:
        UsageError: The parameters do not go together, or name nothing that can be measured.
        ServiceError: The draft's hub cannot be reached.
    """
    root = run_root()
    known = open_run(root, run_id) if run_id else run_of_flow_run(root, flow_run_of_now())
    if known is not None and (facts := known.facts().get(EVALUATES)):
        return Asked(measuring_of(facts), overrides, known.run_id)
    found = measuring(draft, arms_of(arms, arm_keys) if arms else (), target)
    try:
        values = overrides_for(
            profile,
            found,
            target=target,
            prompts=prompts,
            full=full,
            overrides=override_values(overrides),
        )
    except ProfileProblem as problem:
        raise ProfileError(problem.what, where=problem.where, hint=problem.hint) from None
    return Asked(found, ProfileOverrides.model_validate(values), None)
