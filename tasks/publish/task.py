"""The publish stage as a Prefect task."""

from __future__ import annotations

import os
from pathlib import Path

from profiles.publishing import Hub
from profiles.schema import Profile
from tasks.errors import UsageError
from tasks.evaluate.models import EvaluationReport
from tasks.execute import RunContext, execute_stage, stage_digest
from tasks.publish.core import publish as decide_and_publish
from tasks.publish.hub.loading import load_in_child
from tasks.publish.hub.publisher import HubPublisher
from tasks.publish.hub.token_check import check_access, checked_token
from tasks.publish.models import Publication
from tasks.publish.records import read_record
from tasks.publish.registry import aliases_operation, register_operation, version_operation
from tasks.publish.versions import draft_root, published_by
from tasks.publish.words import words_of
from tasks.report.task import show_artifacts, stage_task
from tasks.serve.models import TargetIdentity
from tasks.serve.target_folder import resolve_target
from tasks.stage import canonical, sha256_text
from tasks.stages import EVALUATE, PUBLISH, TRAIN
from tasks.stream.models import CaptureManifest
from tasks.tracking_queue import Operation
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
    words = words_of(ctx.run)
    inputs = {"train": stage_digest(ctx, TRAIN), "evaluate": stage_digest(ctx, EVALUATE)}
    if words:
        inputs["words"] = sha256_text(canonical([word.model_dump() for word in words]))
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
            words,
            publisher_of(ctx),
        ),
    )
    for operation in registration(ctx, publication, draft, captures):
        ctx.tracker.send(operation)
    reasons = "; ".join(publication.decision.reasons)[:4000]
    ctx.tracker.tag(None, {"dspark.promote": str(publication.decision.promote), "dspark.reasons": reasons})
    show_artifacts(ctx, PUBLISH, publication)
    return publication


def publisher_of(ctx: RunContext) -> HubPublisher | None:
    """What publishes on the profile's hub; None without one."""
    hub = ctx.profile.publish.hub if ctx.profile.publish.kind == "hub" else None
    if hub is None:
        return None
    target = resolve_target(ctx.profile)
    return HubPublisher(hub, hub_token(hub), lambda folder: load_in_child(ctx, folder, target))


def check_hub(profile: Profile) -> None:
    """Before a run starts: may its token write where the draft is to go?

    Raises:
        UsageError: There is no token, or it may not; with the remedy.
        PublishError: The hub does not answer.
    """
    if profile.publish.kind == "hub" and profile.publish.hub is not None:
        check_access(profile.publish.hub, hub_token(profile.publish.hub))


def hub_token(hub: Hub) -> str:
    """The token, from the Prefect Secret or the variable that the profile names; masked from now on."""
    return checked_token(
        hub, secret(hub.token_secret) if hub.token_secret else os.environ.get(hub.token_env, "")
    )


def secret(name: str) -> str:
    """Value of a Prefect Secret block.

    Raises:
        UsageError: There is none of that name.
    """
    from prefect.blocks.system import Secret

    try:
        found = Secret.load(name)
    except ValueError:
        raise UsageError(
            f"Prefect has no Secret block named '{name}'",
            where="publish.hub.token_secret",
            hint="make it on the Blocks page of the Prefect UI (type Secret), or unset the field to take the "
            "token from an environment variable",
        ) from None
    return str(found.get())  # type: ignore[union-attr]


def registration(
    ctx: RunContext, publication: Publication, draft: DraftCheckpoint, captures: CaptureManifest
) -> list[Operation]:
    """What the registry has to hear about this draft, also of a publication that is only reused."""
    place, weights = draft_root(ctx.profile, ctx.run.path.parent), draft.files.get("model.safetensors", "")
    version = published_by(place, ctx.run.run_id, weights)
    record = read_record(place, version) if version else None
    if record is not None and publication.decision.promote:
        return [version_operation(place, record, candidate=True), aliases_operation(place)]
    tags = {f"dspark.{name}": value for name, value in lineage(ctx).items()}
    return [
        register_operation(
            ctx.profile.publish.name,
            ctx.run.run_id,
            weights,
            Path(publication.location),
            publication.decision,
            {**tags, "dspark.captures": captures.digest},
        )
    ]


def lineage(ctx: RunContext) -> dict[str, str]:
    """Where else this run is recorded: run id, flow run, MLflow run, commit."""
    facts = ctx.run.facts()
    names = ("flow_run_id", "mlflow_parent_run_id", "mlflow_tracking_uri", "git_commit", "profile_digest")
    return {"run_id": ctx.run.run_id, **{name: str(facts[name]) for name in names if facts.get(name)}}
