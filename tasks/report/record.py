"""What a run folder tells, read without ever failing on a half-finished run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from profiles.schema import Profile
from tasks.errors import RetrainError
from tasks.evaluate.models import EvaluationReport
from tasks.evaluate.worth.conclude import conclude
from tasks.evaluate.worth.stages import gpus_of_node
from tasks.publish.models import Publication
from tasks.redaction import redact
from tasks.run_folder import RunFolder
from tasks.serve.models import TargetIdentity
from tasks.stage import MANIFEST
from tasks.stream.models import CaptureManifest
from tasks.train.models import DraftCheckpoint
from tasks.validate.models import ValidationReport
from tasks.validate.recording import read_files

Model = TypeVar("Model", bound=BaseModel)

STAGE_NAMES = ("validate", "serve", "stream", "train", "evaluate", "publish")

STAGE_PURPOSE = {
    "validate": "checks of the machine",
    "serve": "the target, ready to answer",
    "stream": "answers and hidden states",
    "train": "the draft",
    "evaluate": "acceptance, replayed and live",
    "publish": "decision and draft folder",
}


@dataclass(frozen=True)
class RunRecord:
    """Everything that a finished or broken run left behind; what does not exist is None or empty."""

    run: RunFolder
    profile: Profile | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    validation: ValidationReport | None = None
    target: TargetIdentity | None = None
    captures: CaptureManifest | None = None
    draft: DraftCheckpoint | None = None
    evaluation: EvaluationReport | None = None
    publication: Publication | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    """Stage -> seconds of the work that made its result."""
    training: tuple[dict[str, Any], ...] = ()
    """Rows of the trainer's `metrics.jsonl`."""

    @property
    def error(self) -> dict[str, Any] | None:
        """The error that ended the run: stage, kind, what, where, hint, log_tail."""
        stored = self.facts.get("error")
        return stored if isinstance(stored, dict) else None


_FIELD = {
    "validate": "validation",
    "serve": "target",
    "stream": "captures",
    "train": "draft",
    "evaluate": "evaluation",
    "publish": "publication",
}


def of_this_attempt(record: RunRecord, rows: Sequence[Mapping[str, Any]]) -> RunRecord:
    """The record without results of stages that this attempt did not reach: an earlier attempt made them.

    Args:
        rows: `stages` of the summary.
    """
    missing = {row["name"] for row in rows if row["status"] == "skipped"}
    emptied: dict[str, Any] = {_FIELD[name]: None for name in STAGE_NAMES if name in missing}
    seconds = {name: value for name, value in record.seconds.items() if name not in missing}
    training = () if "train" in missing else record.training
    return replace(record, seconds=seconds, training=training, **emptied)


def stage_folder(run: RunFolder, name: str) -> Path:
    """Folder of the stage called `name`, e.g. `04-train`."""
    return run.path / f"{STAGE_NAMES.index(name) + 1:02d}-{name}"


def record_error(run: RunFolder, stage: str | None, error: BaseException) -> None:
    """Keep in `run.json` what ended the run, for the report and the closing lines."""
    known = isinstance(error, RetrainError)
    run.remember(
        error={
            "stage": stage,
            "kind": type(error).__name__,
            "what": error.what
            if isinstance(error, RetrainError)
            else redact(f"{type(error).__name__}: {error}"),
            "where": error.where if isinstance(error, RetrainError) else "",
            "hint": error.hint if isinstance(error, RetrainError) else "",
            "log_tail": list(error.log_tail) if isinstance(error, RetrainError) else [],
            "exit_code": error.exit_code if isinstance(error, RetrainError) else 1,
            "expected": known,
        }
    )


def read_run(run: RunFolder) -> RunRecord:
    """Read everything in the run folder that can be read.

    A machine that was refused has no manifest, so that it is checked again; its checks are in files.
    """
    seconds = {
        name: float(manifest["seconds"])
        for name in STAGE_NAMES
        if isinstance((manifest := _manifest(run, name)).get("seconds"), int | float)
    }
    profile = _profile(run)
    return RunRecord(
        run=run,
        profile=profile,
        facts=_json(run.path / "run.json"),
        validation=_result(run, "validate", ValidationReport) or read_files(stage_folder(run, "validate")),
        target=_result(run, "serve", TargetIdentity),
        captures=_result(run, "stream", CaptureManifest),
        draft=_result(run, "train", DraftCheckpoint),
        evaluation=_evaluation(run, profile, seconds),
        publication=_result(run, "publish", Publication),
        seconds=seconds,
        training=tuple(_rows(stage_folder(run, "train") / "metrics.jsonl")),
    )


def _evaluation(
    run: RunFolder, profile: Profile | None, seconds: Mapping[str, float]
) -> EvaluationReport | None:
    """The evaluation, its decision inputs worked out again: with the prices and targets that hold now."""
    found = _result(run, "evaluate", EvaluationReport)
    if found is None or found.worth is None or profile is None:
        return found
    worth = conclude(found, found.worth.measured, profile, seconds, gpus_of_node(run.path))
    return found.model_copy(update={"worth": worth})


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _manifest(run: RunFolder, name: str) -> dict[str, Any]:
    return _json(stage_folder(run, name) / MANIFEST)


def _result(run: RunFolder, name: str, model: type[Model]) -> Model | None:
    try:
        return model.model_validate(_manifest(run, name)["result"])
    except (KeyError, ValidationError):
        return None


def _profile(run: RunFolder) -> Profile | None:
    try:
        return run.profile()
    except (OSError, ValueError):
        return None


def _rows(path: Path) -> Sequence[dict[str, Any]]:
    """Rows of a JSONL file; a last line cut off by a crash is left out."""
    rows: list[dict[str, Any]] = []
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return rows
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows
