"""The serve stage as a Prefect task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tasks.execute import RunContext, execute_stage
from tasks.report.task import show_artifacts, stage_task
from tasks.serve.lazy import LazyTarget, Server, lazy_target
from tasks.serve.models import TargetIdentity
from tasks.serve.target import TargetServer
from tasks.serve.target_digest import model_digest
from tasks.serve.target_folder import resolve_target
from tasks.stages import SERVE


@contextmanager
def target_of(ctx: RunContext) -> Iterator[LazyTarget]:
    """The run's target: started when a stage needs it, ended on every way out."""

    def make() -> Server:
        return TargetServer(ctx.profile, ctx.run, ctx.launcher, ctx.progress)

    with lazy_target(make) as target:
        yield target


@stage_task(SERVE)
def serve(ctx: RunContext, target: LazyTarget) -> TargetIdentity:
    """Serve the target with hidden-state extraction; answered when it has completed a real generation."""
    folder = resolve_target(ctx.profile)
    inputs = {"target": model_digest(folder)}
    identity = execute_stage(ctx, SERVE, inputs, lambda _: target.open()[0])
    show_artifacts(ctx, SERVE, identity)
    return identity
