"""The train stage as a Prefect task."""

from __future__ import annotations

from tasks.execute import RunContext, execute_stage
from tasks.report.task import show_artifacts, stage_task
from tasks.serve.target_folder import resolve_target
from tasks.stages import STREAM, TRAIN
from tasks.stream.models import CaptureManifest
from tasks.train.core import train as train_draft
from tasks.train.models import DraftCheckpoint


@stage_task(TRAIN)
def train(ctx: RunContext, captures: CaptureManifest) -> DraftCheckpoint:
    """Train the draft in its own process; an unfinished attempt goes on from its checkpoint."""
    log_dir = ctx.run.stage(STREAM).path / captures.log
    draft = execute_stage(
        ctx,
        TRAIN,
        {"captures": captures.digest},
        lambda folder: train_draft(
            ctx.profile,
            ctx.run,
            folder,
            captures,
            log_dir,
            resolve_target(ctx.profile),
            ctx.launcher,
            ctx.progress,
        ),
    )
    ctx.tracker.log_data(TRAIN.name, "captures", captures.digest, str(log_dir))
    show_artifacts(ctx, TRAIN, draft)
    return draft
