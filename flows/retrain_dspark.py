"""The pipeline: validate, serve, stream, train, evaluate, publish.

Run it with `retrain-dspark run -p laptop`, from the Prefect UI, or with
`prefect deployment run retrain-dspark`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from prefect import flow

from flows.approving import ask_people
from flows.hooks import close_run, name_of_flow_run
from flows.opening import ending, opened_run
from profiles.load import builtin_names
from profiles.overrides import ProfileOverrides
from profiles.schema import Profile
from tasks.evaluate.task import evaluate
from tasks.publish.task import publish
from tasks.report.task import show_plan
from tasks.serve.task import serve, target_of
from tasks.stages import StageName
from tasks.stream.task import stream
from tasks.train.task import train, trainer_of
from tasks.validate.task import validate

if TYPE_CHECKING:
    ProfileName = str
else:
    ProfileName = Literal[builtin_names()]


@flow(
    name="retrain-dspark",
    description="Retrains a DSpark draft for a served model and publishes it only when it is better.",
    flow_run_name=name_of_flow_run,
    on_failure=[close_run],
    on_cancellation=[close_run],
    on_crashed=[close_run],
    persist_result=False,
    validate_parameters=True,
)
def retrain_dspark(
    profile: ProfileName | Profile = "laptop",
    overrides: ProfileOverrides | None = None,
    run_id: str | None = None,
    from_stage: StageName | None = None,
) -> Any:
    """Retrain, measure and publish a draft.

    Args:
        profile: Name of a built-in profile, or a whole profile.
        overrides: What differs from the profile; merged field by field.
        run_id: Run to resume; its own profile is used, and finished stages are reused.
        from_stage: Stage to run again although its result is valid; those after it run again too.
    """
    with opened_run(profile, overrides, run_id, from_stage) as ctx:
        show_plan(ctx)
        validation = validate(ctx)
        with trainer_of(ctx) as trainer:
            with target_of(ctx) as target:
                identity = serve(ctx, target)
                captures = stream(ctx, target, identity, trainer)
            draft = train(ctx, captures, trainer)
        evaluation = evaluate(ctx, captures, draft)
        ask_people(ctx, draft, evaluation, identity, captures)
        publish(ctx, draft, evaluation, identity, captures, validation)
    return ending(ctx)
