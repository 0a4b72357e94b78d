"""Measure any draft on your own prompts, without training: is it worth serving?

Run it with `retrain-dspark evaluate --draft FOLDER_OR_REPOSITORY`, from the Prefect UI, or with
`prefect deployment run evaluate-dspark`.
"""

from __future__ import annotations

from typing import Any

from prefect import flow

from flows.hooks import close_run, name_of_flow_run
from flows.measuring import EVALUATES, asked_for
from flows.opening import ending, opened_run
from flows.retrain_dspark import ProfileName
from profiles.overrides import ProfileOverrides
from profiles.schema import Profile
from tasks.evaluate.draft_source import checkpoint_of
from tasks.evaluate.task import evaluate, evaluate_attached
from tasks.serve.task import serve, target_of
from tasks.stages import StageName
from tasks.stream.task import stream
from tasks.train.task import trainer_of
from tasks.validate.task import validate


@flow(
    name="evaluate-dspark",
    description="Measures a DSpark draft, or servers that already run, on your prompts; nothing is trained.",
    flow_run_name=name_of_flow_run,
    on_failure=[close_run],
    on_cancellation=[close_run],
    on_crashed=[close_run],
    persist_result=False,
    validate_parameters=True,
)
def evaluate_dspark(
    draft: str | None = None,
    target: str | None = None,
    prompts: list[str] | None = None,
    profile: ProfileName | Profile = "laptop",
    overrides: ProfileOverrides | None = None,
    full: bool = False,
    arms: dict[str, str] | None = None,
    arm_keys: dict[str, str] | None = None,
    run_id: str | None = None,
    from_stage: StageName | None = None,
) -> Any:
    """Measure a draft, or servers that already run.

    Args:
        draft: Folder of a draft, or OWNER/NAME (with @REVISION) of one on a hub.
        target: Folder of the target; empty takes the profile's.
        prompts: Evaluation prompts: files, folders or public sets; empty takes the profile's.
        profile: Name of a built-in profile, or a whole profile.
        overrides: What differs from the profile; merged field by field.
        full: Measure everything that there is: loads, long contexts, public prompt sets.
        arms: Servers that already run, name -> URL; `none` is the one without a draft. Instead of a draft.
        arm_keys: Name of an arm -> name of the environment variable that holds its key.
        run_id: Run to resume; it measures what it began with.
        from_stage: Stage to run again although its result is valid; those after it run again too.
    """
    asked = asked_for(
        draft, arms or {}, arm_keys or {}, profile, target, prompts or (), full, overrides, run_id
    )
    with opened_run(profile, asked.overrides, asked.run_id, from_stage) as ctx:
        ctx.run.remember(**{EVALUATES: asked.measuring.facts()})
        if asked.measuring.draft is None:
            evaluate_attached(ctx, asked.measuring.arms)
        else:
            validate(ctx)
            with trainer_of(ctx) as trainer, target_of(ctx) as served:
                captures = stream(ctx, served, serve(ctx, served), trainer)
            evaluate(ctx, captures, checkpoint_of(asked.measuring.draft))
    return ending(ctx)
