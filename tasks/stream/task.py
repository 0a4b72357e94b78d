"""The stream stage as a Prefect task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tasks.errors import StageInputError
from tasks.execute import RunContext, execute_stage
from tasks.prompts.load import load_prompts
from tasks.report.task import show_artifacts, stage_task
from tasks.serve.deaths import telling_deaths
from tasks.serve.lazy import LazyTarget
from tasks.serve.models import TargetIdentity
from tasks.serve.target_folder import resolve_target
from tasks.stage import canonical, fingerprint, sha256_text
from tasks.stages import STREAM
from tasks.stream.core import capture
from tasks.stream.models import CaptureManifest
from tasks.train.trainer import Trainer

_SAME = ("model_digest", "tokenizer_digest", "template_digest", "dtype", "layer_ids")


def identity_digest(identity: TargetIdentity) -> str:
    """Digest of what decides the captures of a target: weights, tokenizer, template, type, layers and, where
    it has a choice, the tap point."""
    values = identity.model_dump(mode="json")
    tap = {} if identity.tap_point is None else {"tap_point": identity.tap_point}
    return sha256_text(canonical({name: values[name] for name in _SAME} | tap))


@stage_task(STREAM)
def stream(
    ctx: RunContext, target: LazyTarget, identity: TargetIdentity, trainer: Trainer
) -> CaptureManifest:
    """Capture answers and hidden states in one pass; the target is started only if something is missing.

    With `stream.overlap` the trainer works beside it.
    """
    inputs = {"target": identity_digest(identity), "prompts": load_prompts(ctx.profile).digest}
    trainer.captures_of = sha256_text(canonical(fingerprint(STREAM, ctx.profile, inputs)))

    def work(folder: Path) -> CaptureManifest:
        answering, endpoint = target.open()
        if identity_digest(answering) != inputs["target"]:
            raise StageInputError(
                "the target that answers now is not the one that this run validated",
                where=str(endpoint.url),
                hint="resume with --from serve",
            )
        trainer.begin(answering)
        with telling_deaths(target.handles):
            return capture(
                ctx.profile,
                ctx.run,
                folder,
                endpoint,
                answering,
                resolve_target(ctx.profile),
                ctx.launcher,
                trainer.beside(ctx.progress),
                both(target.watch(), trainer.watch),
                trainer.end_now,
            )

    captures = execute_stage(ctx, STREAM, inputs, work)
    ctx.tracker.log_data(STREAM.name, "captures", captures.digest, str(log_of(ctx, captures)))
    show_artifacts(ctx, STREAM, captures)
    return captures


def both(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    """A watch that looks after two."""

    def watch() -> None:
        first()
        second()

    return watch


def log_of(ctx: RunContext, captures: CaptureManifest) -> Path:
    """Folder of the hidden-state log."""
    return ctx.run.stage(STREAM).path / captures.log
