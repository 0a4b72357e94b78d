"""The evaluate stage as a Prefect task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tasks.evaluate.attach import ArmAddress
from tasks.evaluate.attach_checks import attach_arms
from tasks.evaluate.attach_measure import measure_attached
from tasks.evaluate.core import evaluate as measure
from tasks.evaluate.models import EvaluationReport
from tasks.execute import RunContext, execute_stage
from tasks.prompts.load import load_prompts
from tasks.publish.incumbent import resolve_incumbent
from tasks.report.task import show_artifacts, stage_task
from tasks.serve.target_folder import resolve_target
from tasks.stage import canonical, fingerprint, sha256_text
from tasks.stages import EVALUATE, STREAM, TRAIN
from tasks.stream.models import CaptureManifest
from tasks.train.models import DraftCheckpoint


@stage_task(EVALUATE)
def evaluate(ctx: RunContext, captures: CaptureManifest, draft: DraftCheckpoint) -> EvaluationReport:
    """Measure the draft by replay and on the real engine, against the incumbent where there is one."""
    inputs = {"captures": captures.digest, "draft": sha256_text(canonical(draft.files))}
    incumbent = _incumbent(ctx, inputs)
    inputs["incumbent"] = _version(incumbent)
    report = execute_stage(
        ctx,
        EVALUATE,
        inputs,
        lambda folder: measure(
            ctx.profile,
            ctx.run,
            folder,
            captures,
            ctx.run.stage(STREAM).path / captures.log,
            draft,
            ctx.run.stage(TRAIN).path / draft.path,
            resolve_target(ctx.profile),
            ctx.launcher,
            ctx.progress,
            incumbent,
        ),
    )
    show_artifacts(ctx, EVALUATE, report)
    return report


@stage_task(EVALUATE)
def evaluate_attached(ctx: RunContext, addresses: Sequence[ArmAddress]) -> EvaluationReport:
    """Measure servers that run already; they are asked, and nothing of them is changed."""
    arms = attach_arms(ctx.profile, addresses)
    inputs = {
        "arms": sha256_text(canonical([[arm.name, arm.url, arm.engine, arm.draft_tokens] for arm in arms])),
        "prompts": load_prompts(ctx.profile).digest,
    }
    report = execute_stage(
        ctx,
        EVALUATE,
        inputs,
        lambda folder: measure_attached(ctx.profile, ctx.run, folder, arms, ctx.launcher, ctx.progress),
    )
    show_artifacts(ctx, EVALUATE, report)
    return report


def _incumbent(ctx: RunContext, inputs: Mapping[str, str]) -> tuple[str, Path] | None:
    """The champion to beat. A finished evaluation keeps its own: by now its draft may be champion.

    Args:
        inputs: Digests of captures and draft; with other ones the champion of now is to be beaten.
    """
    known = ctx.run.facts().get("incumbent")
    if known is not None and not ctx.forced(EVALUATE):
        before = (known[0], Path(known[1])) if known else None
        wanted = fingerprint(EVALUATE, ctx.profile, {**inputs, "incumbent": _version(before)})
        if ctx.run.stage(EVALUATE).load(wanted)[0] is not None:
            return before
    found = resolve_incumbent(ctx.profile, ctx.run.path.parent)
    ctx.run.remember(incumbent=[found[0], str(found[1])] if found else [])
    return found


def _version(incumbent: tuple[str, Path] | None) -> str:
    return incumbent[0] if incumbent else "none"
