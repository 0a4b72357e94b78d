"""Makes Prefect tasks of stages: no caching by Prefect, and one artifact for each stage with a stable key."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from prefect import task
from prefect.artifacts import create_image_artifact, create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE

from tasks.execute import RunContext
from tasks.stage import Stage

Work = TypeVar("Work", bound=Callable[..., Any])
log = logging.getLogger("retrain_dspark")
MAX_IMAGE_BYTES = 200_000


def stage_task(stage: Stage[Any]) -> Callable[[Work], Work]:
    """Decorate a stage's function as the Prefect task named after the stage.

    Prefect keeps no result of it and caches nothing: the stage's manifest decides what is finished, also in
    another Prefect database and without Prefect. No retries: a stage resumes, it is not repeated.
    """

    def decorate(function: Work) -> Work:
        decorated: Any = task(
            name=stage.name,
            task_run_name=stage.name,
            cache_policy=NO_CACHE,
            persist_result=False,
            retries=0,
        )(function)
        return decorated  # type: ignore[no-any-return]

    return decorate


def show_artifacts(ctx: RunContext, stage: Stage[Any], result: Any) -> None:
    """Put what REPORT shows of a stage into Prefect; a failure to do so is logged and changes nothing."""
    from tasks.report.artifacts import stage_artifacts

    try:
        for artifact in stage_artifacts(stage.name, result, ctx.run):
            _create(f"{stage.name}-{artifact.key}", artifact)
    except Exception as error:
        log.warning("%s: its Prefect artifact was not written: %s", stage.name, error)


def show_plan(ctx: RunContext) -> None:
    """Make the run's plan, keep it in its folder and put it into Prefect, before anything works."""
    from tasks.plan.keep import keep_plan
    from tasks.plan.render import plan_markdown
    from tasks.report.artifacts import StageArtifact

    plan = keep_plan(ctx.run, ctx.profile)
    if plan is None:
        return
    for risk in plan.risks:
        if risk.severity != "note":
            ctx.progress.say(f"plan: {risk.what}; to do: {risk.remedy}")
    try:
        _create("plan-markdown", StageArtifact("markdown", "What this run plans", plan_markdown(plan)))
    except Exception as error:
        log.warning("the plan's Prefect artifact was not written: %s", error)


def _create(key: str, artifact: Any) -> None:
    if artifact.kind == "table":
        create_table_artifact(artifact.content, key=key, description=artifact.description)
    elif artifact.kind == "image":
        data = (
            artifact.content if isinstance(artifact.content, bytes) else Path(artifact.content).read_bytes()
        )
        if len(data) <= MAX_IMAGE_BYTES:
            url = "data:image/png;base64," + base64.b64encode(data).decode()
            create_image_artifact(image_url=url, key=key, description=artifact.description)
    else:
        create_markdown_artifact(artifact.content, key=key, description=artifact.description)
