"""The publish stage as a Prefect task."""

from __future__ import annotations

from tasks.evaluate.models import EvaluationReport
from tasks.execute import RunContext, execute_stage, stage_digest
from tasks.publish.core import publish as decide_and_publish
from tasks.publish.models import Publication
from tasks.report.task import show_artifacts, stage_task
from tasks.serve.models import TargetIdentity
from tasks.serve.target_folder import resolve_target
from tasks.stages import EVALUATE, PUBLISH, TRAIN
from tasks.stream.models import CaptureManifest
from tasks.train.models import DraftCheckpoint
from tasks.validate.models import ValidationReport


@stage_task(PUBLISH)
def publish(
    ctx: RunContext,
    draft: DraftCheckpoint,
    evaluation: EvaluationReport,
    identity: TargetIdentity,
    captures: CaptureManifest,
    validation: ValidationReport,
) -> Publication:
    """Decide with reasons, and publish the draft if it is better."""
    inputs = {"train": stage_digest(ctx, TRAIN), "evaluate": stage_digest(ctx, EVALUATE)}
    publication = execute_stage(
        ctx,
        PUBLISH,
        inputs,
        lambda folder: decide_and_publish(
            ctx.profile,
            ctx.run,
            folder,
            draft,
            ctx.run.stage(TRAIN).path / draft.path,
            evaluation,
            identity,
            captures,
            validation,
            resolve_target(ctx.profile),
            lineage(ctx),
        ),
    )
    reasons = "; ".join(publication.decision.reasons)[:4000]
    ctx.tracker.tag(None, {"dspark.promote": str(publication.decision.promote), "dspark.reasons": reasons})
    show_artifacts(ctx, PUBLISH, publication)
    return publication


def lineage(ctx: RunContext) -> dict[str, str]:
    """Where else this run is recorded: run id, flow run, MLflow run, commit."""
    facts = ctx.run.facts()
    names = ("flow_run_id", "mlflow_parent_run_id", "mlflow_tracking_uri", "git_commit", "profile_digest")
    return {"run_id": ctx.run.run_id, **{name: str(facts[name]) for name in names if facts.get(name)}}
