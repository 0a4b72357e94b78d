"""The validate stage as a Prefect task."""

from __future__ import annotations

from pathlib import Path

from tasks.errors import HardwareError
from tasks.execute import RunContext, execute_stage
from tasks.report.task import show_artifacts, stage_task
from tasks.stages import VALIDATE
from tasks.validate.core import raise_if_failed
from tasks.validate.core import validate as check
from tasks.validate.models import ValidationReport
from tasks.validate.recording import tracked, write_files


@stage_task(VALIDATE)
def validate(ctx: RunContext) -> ValidationReport:
    """Check the machine; a failing check stops the run with its remedy."""
    report = execute_stage(ctx, VALIDATE, {}, lambda folder: _work(ctx, folder))
    show_artifacts(ctx, VALIDATE, report)
    try:
        raise_if_failed(report)
    except HardwareError:
        ctx.run.stage(VALIDATE).invalidate()  # a machine that was refused is checked again
        ctx.rows[-1].status = "failed"
        raise
    return report


def _work(ctx: RunContext, folder: Path) -> ValidationReport:
    """The checks; their facts and results go into files, and into parameters and tags of MLflow."""
    report = check(ctx.profile, ctx.run, folder, ctx.launcher, ctx.progress)
    write_files(folder, report)
    ctx.tracker.log_params(VALIDATE.name, tracked(report))
    tags = {"dspark.toolkit_channel": report.toolkit_channel}
    ctx.tracker.tag(None, tags)
    ctx.tracker.tag(VALIDATE.name, {**tags, "dspark.checks": report.worst})
    return report
