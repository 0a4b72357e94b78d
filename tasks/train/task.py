"""The train stage as a Prefect task."""

from __future__ import annotations

from tasks.execute import RunContext, execute_stage
from tasks.report.task import show_artifacts, stage_task
from tasks.stages import STREAM, TRAIN
from tasks.stream.models import CaptureManifest
from tasks.train.initial import resolve_initial
from tasks.train.models import DraftCheckpoint
from tasks.train.trainer import Trainer, trainer_of

__all__ = ["train", "trainer_of"]


@stage_task(TRAIN)
def train(ctx: RunContext, captures: CaptureManifest, trainer: Trainer) -> DraftCheckpoint:
    """Train the draft in its own process; an unfinished attempt goes on from its checkpoint."""
    inputs = {"captures": captures.digest}
    if ctx.profile.stream.overlaps:
        inputs["order"] = "of capture, in the first epoch"
    if (initial := resolve_initial(ctx.profile, ctx.run)) is not None:
        inputs["initial"] = initial.digest
    draft = execute_stage(
        ctx, TRAIN, inputs, lambda folder: trainer.finish(folder, captures), trainer.started_with()
    )
    log_dir = ctx.run.stage(STREAM).path / captures.log
    ctx.tracker.log_data(TRAIN.name, "captures", captures.digest, str(log_dir))
    show_artifacts(ctx, TRAIN, draft)
    return draft
