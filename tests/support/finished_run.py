"""A run that came as far as its evaluation, with real files and manifests, and nothing published yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from profiles.schema import Profile
from tasks.evaluate.models import EvaluationReport
from tasks.run_folder import RunFolder, create_run
from tasks.stage import fingerprint
from tasks.stages import EVALUATE, SERVE, STREAM, TRAIN, VALIDATE
from tests.unit.tasks.publish import drafts


def profile_with_target(target: Path, **publish: Any) -> Profile:
    """The small drafts' profile, for a target folder that exists."""
    target.mkdir(exist_ok=True)
    settings = drafts.profile(**publish)
    return settings.model_copy(update={"target": settings.target.model_copy(update={"model": str(target)})})


def finished_run(
    root: Path, run_id: str, profile: Profile, evaluation: EvaluationReport | None = None
) -> RunFolder:
    """Make the folder of a run whose first five stages are complete."""
    run = create_run(root, run_id, profile)
    draft_dir = drafts.export(run.stage(TRAIN).path / "draft")
    results = {
        VALIDATE: drafts.validation(),
        SERVE: drafts.identity(),
        STREAM: drafts.captures(),
        TRAIN: drafts.checkpoint(draft_dir),
        EVALUATE: evaluation or drafts.evaluation(),
    }
    for stage, result in results.items():
        folder = run.stage(stage)
        folder.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.complete(result, fingerprint(stage, profile, {}), {}, 1.0)
    run.remember(created_at="2026-01-01T00:00:00+00:00", overrides={}, owner="")
    return run
