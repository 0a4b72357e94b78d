"""Results of a run that came as far as its evaluation: what a later decision about its draft needs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from tasks.errors import UsageError
from tasks.evaluate.models import EvaluationReport
from tasks.run_folder import RunFolder
from tasks.serve.models import TargetIdentity
from tasks.stage import MANIFEST, Stage, sha256_file
from tasks.stages import EVALUATE, SERVE, STREAM, TRAIN, VALIDATE
from tasks.stream.models import CaptureManifest
from tasks.train.models import DraftCheckpoint
from tasks.validate.models import ValidationReport

NEEDED: tuple[Stage[Any], ...] = (VALIDATE, SERVE, STREAM, TRAIN, EVALUATE)


@dataclass(frozen=True)
class Finished:
    """Everything before publication, as the stages left it."""

    draft: DraftCheckpoint
    evaluation: EvaluationReport
    identity: TargetIdentity
    captures: CaptureManifest
    validation: ValidationReport


def finished(run: RunFolder) -> Finished:
    """Read the results of a run. The draft's files are checked; captures are not read again.

    Raises:
        UsageError: A stage is not finished, or the draft is not the one that was evaluated.
    """
    validation, identity, captures, draft, evaluation = (_result(run, stage) for stage in NEEDED)
    for name, digest in draft.files.items():
        path = run.stage(TRAIN).path / draft.path / name
        if not path.is_file() or sha256_file(path) != digest:
            raise UsageError(
                f"the draft of run {run.run_id} is not the one that was evaluated: {name} is "
                f"{'changed' if path.is_file() else 'missing'}",
                where=str(path.parent),
                hint=f"retrain-dspark resume {run.run_id}",
            )
    return Finished(draft, evaluation, identity, captures, validation)


def _result(run: RunFolder, stage: Stage[Any]) -> Any:
    path = run.stage(stage).path / MANIFEST
    try:
        return stage.model.model_validate(json.loads(path.read_text(encoding="utf-8"))["result"])
    except FileNotFoundError:
        problem = f"has not finished stage {stage.name}"
    except (OSError, ValueError, KeyError, TypeError, ValidationError):
        problem = f"has a manifest of stage {stage.name} that cannot be read"
    raise UsageError(
        f"run {run.run_id} {problem}, so there is nothing to decide about",
        where=str(run.stage(stage).path),
        hint=f"retrain-dspark resume {run.run_id}",
    )
