"""The train stage: checks its inputs, runs the trainer as its own process, returns what it exported."""

from __future__ import annotations

import sys
from pathlib import Path

from profiles.schema import Profile
from tasks.errors import JobError, StageInputError
from tasks.processes.job import run_job
from tasks.processes.launcher import Launcher, ProcessSpec
from tasks.report.progress import Progress
from tasks.run_folder import RunFolder
from tasks.serve.target_folder import TargetConfig, read_target_config
from tasks.stage import write_atomic
from tasks.stream.models import CaptureManifest
from tasks.train.models import DraftCheckpoint
from tasks.train.settings import TrainSettings

CONFIG = "config.json"
RESULT = "result.json"


def train(
    profile: Profile,
    run: RunFolder,
    folder: Path,
    captures: CaptureManifest,
    log_dir: Path,
    target_dir: Path,
    launcher: Launcher,
    progress: Progress,
) -> DraftCheckpoint:
    """Train a draft on the captures; continues from a complete checkpoint of the same configuration.

    Args:
        folder: The stage's folder; gets `config.json`, `metrics.jsonl`, `checkpoints/` and `draft/`.
        log_dir: Folder of the hidden-state log.
        target_dir: The target in Hugging Face format.

    Raises:
        StageInputError: The captures do not fit the profile or the target.
        JobError: The trainer ended with an error.
    """
    check_inputs(profile, captures, read_target_config(target_dir))
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    progress_file = run.progress / "train.jsonl"
    settings = TrainSettings(
        train=profile.train,
        log_dir=str(log_dir),
        captures_digest=captures.digest,
        target_dir=str(target_dir),
        target_name=target_name(profile),
        aux_layer_ids=profile.target.aux_layer_ids,
        hidden_size=captures.hidden_size,
        capture_dtype=captures.dtype,
        temperature=captures.temperature,
        layer_links=captures.canary.layer_links,
        folder=str(folder),
        progress_file=str(progress_file),
    )
    (folder / RESULT).unlink(missing_ok=True)
    write_atomic(folder / CONFIG, settings.model_dump_json(indent=2))
    spec = ProcessSpec(
        name="trainer",
        stage="train",
        role="train",
        argv=(sys.executable, "-m", "tasks.train.run", str(folder / CONFIG)),
    )
    run_job(
        launcher,
        spec,
        run,
        progress=progress,
        progress_file=progress_file,
        stall_timeout_s=profile.train.stall_timeout_s,
    )
    return _read_result(folder)


def _read_result(folder: Path) -> DraftCheckpoint:
    path = folder / RESULT
    if not path.is_file():
        raise JobError(
            "the trainer ended without a result",
            where=str(path),
            hint="read the trainer's log; resume continues from its last checkpoint",
        )
    return DraftCheckpoint.model_validate_json(path.read_text(encoding="utf-8"))


def target_name(profile: Profile) -> str:
    """The target's name for the exported configuration: never a path of this machine."""
    model = profile.target.model
    is_path = Path(model).expanduser().is_dir() or model.startswith((".", "/", "~"))
    return Path(model).name if is_path else model


def check_inputs(profile: Profile, captures: CaptureManifest, target: TargetConfig) -> None:
    """Refuse captures that another target or another profile made.

    Raises:
        StageInputError: Naming the field and both values.
    """
    wanted = (*profile.target.aux_layer_ids, target.num_hidden_layers)
    recapture = "run again from stage stream, or set target.aux_layer_ids to the captured layers"
    if tuple(captures.layer_ids) not in (wanted, tuple(profile.target.aux_layer_ids)):
        raise StageInputError(
            f"the captures hold layers {list(captures.layer_ids)}, the draft needs {list(wanted)}",
            where="target.aux_layer_ids",
            hint=recapture,
        )
    if captures.hidden_size != target.hidden_size:
        raise StageInputError(
            f"the captures have hidden size {captures.hidden_size}, the target {target.hidden_size}",
            where="target.model",
            hint="the captures are of another target; run again from stage stream",
        )
    if captures.trainable_tokens == 0:
        raise StageInputError(
            f"the captures hold no answer token to learn from ({captures.samples} samples)",
            where="stream",
            hint="check that the target answers, raise stream.max_new_tokens or add prompts",
        )
