"""The six stages: order, the parts of the profile that each depends on, and the files it vouches for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from profiles.training import OF_THE_MACHINE
from tasks.evaluate.models import EvaluationReport
from tasks.publish.models import Publication
from tasks.serve.models import TargetIdentity
from tasks.stage import MANIFEST, XXH3, Stage, sha256_file
from tasks.stream.index import read_index
from tasks.stream.models import CaptureManifest
from tasks.train.models import DraftCheckpoint
from tasks.validate.models import ValidationReport

StageName = Literal["validate", "serve", "stream", "train", "evaluate", "publish"]

VALIDATE = Stage(1, "validate", 1, ("hardware", "target", "store", "serve"), ValidationReport)
SERVE = Stage(2, "serve", 1, ("target", "serve", "store"), TargetIdentity)
STREAM = Stage(
    3,
    "stream",
    2,
    ("target", "prompts", "stream", "evaluate.replay_max_new_tokens"),
    CaptureManifest,
    mends=True,
    # Who may run the target's code changes nothing that was captured.
    indifferent=("target.allow_code",),
)
TRAIN = Stage(
    4, "train", 1, ("train",), DraftCheckpoint, indifferent=tuple(f"train.{name}" for name in OF_THE_MACHINE)
)
EVALUATE = Stage(
    5,
    "evaluate",
    2,
    ("target", "evaluate"),
    EvaluationReport,
    # What users want and what GPUs cost is held against the same measurement whenever it is shown.
    indifferent=("evaluate.slo", "evaluate.prices", "target.allow_code"),
)
PUBLISH = Stage(6, "publish", 2, ("publish", "report", "evaluate.slo"), Publication)

STAGES: tuple[Stage[Any], ...] = (VALIDATE, SERVE, STREAM, TRAIN, EVALUATE, PUBLISH)
STAGE_NAMES: tuple[str, ...] = tuple(stage.name for stage in STAGES)

STARTED = ".started.json"
_OWN_FILES = {MANIFEST, STARTED}
_NOT_KEPT = ("checkpoints", "checkpoint", "work")


def stage_named(name: str) -> Stage[Any]:
    """The stage called `name`; `KeyError` for another word."""
    return {stage.name: stage for stage in STAGES}[name]


def vouched_files(stage: Stage[Any], folder: Path) -> Mapping[str, str]:
    """Path relative to `folder` -> digest of every file that makes the stage's output.

    The digests of captures (XXH3-128) were taken while they were written and stand in the log's index;
    everything else is read (SHA-256). Checkpoints for resuming and hidden files are left out: a finished
    stage does not need them.
    """
    captured = _captures(folder) if stage.name == STREAM.name else {}
    files: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        hidden = any(part.startswith(".") or part in _NOT_KEPT for part in relative.parts)
        if not path.is_file() or hidden or relative.as_posix() in _OWN_FILES:
            continue
        name = relative.as_posix()
        files[name] = captured.get(name) or sha256_file(path)
    return files


def _captures(folder: Path) -> dict[str, str]:
    """Digests of the samples of a hidden-state log, from its index."""
    log = folder / "log"
    return {f"log/{entry.file_name}": f"{XXH3}{entry.xxh3}" for entry in read_index(log)}
