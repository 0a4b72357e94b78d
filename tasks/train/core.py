"""The train stage: checks its inputs, tells the trainer's process what to do, reads what it exported."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from profiles.schema import Profile
from tasks.errors import JobError, StageInputError
from tasks.processes.launcher import ProcessSpec
from tasks.run_folder import RunFolder
from tasks.serve.target_folder import TargetConfig
from tasks.stage import write_atomic
from tasks.stream.canary_report import read_report
from tasks.stream.models import CaptureManifest
from tasks.stream.settings import CaptureFiles
from tasks.train.command import trainer_argv
from tasks.train.initial import resolve_initial
from tasks.train.models import DraftCheckpoint
from tasks.train.settings import Overlap, TrainSettings

CONFIG = "config.json"
RESULT = "result.json"


def settings_for(
    profile: Profile,
    run: RunFolder,
    folder: Path,
    files: CaptureFiles,
    target_dir: Path,
    captures_digest: str,
    hidden_size: int,
    dtype: str,
) -> TrainSettings:
    """What the trainer needs to know.

    Args:
        folder: The stage's folder; gets `config.json`, `metrics.jsonl`, `checkpoints/` and `draft/`.
        files: Where the captures are, or will be.
        target_dir: The target in Hugging Face format.
        captures_digest: Identity of the captures, or of what will be captured.
        dtype: Of the captured states, as torch writes it.
    """
    return TrainSettings(
        train=profile.train,
        log_dir=str(files.log),
        captures_digest=captures_digest,
        overlap=_overlap(profile, files) if profile.stream.overlaps else None,
        target_dir=str(target_dir),
        own_code=profile.target.trust_remote_code,
        target_name=target_name(profile),
        target_revision=profile.target.revision,
        initial=resolve_initial(profile, run),
        aux_layer_ids=profile.target.aux_layer_ids,
        hidden_size=hidden_size,
        capture_dtype=dtype,
        temperature=profile.stream.known_temperature,
        layer_links=read_report(files.canary).layer_links,
        folder=str(folder),
        progress_file=str(run.progress / "train.jsonl"),
    )


def _overlap(profile: Profile, files: CaptureFiles) -> Overlap:
    """How many samples there will be, from the prompts that the capture client was given."""
    lines = files.prompts.read_text(encoding="utf-8").splitlines()
    splits = Counter(json.loads(line)["split"] for line in lines)
    window = profile.stream.window_bytes if profile.stream.retention == "window" else None
    return Overlap(train_prompts=splits["train"], held_out_prompts=splits["held_out"], window_bytes=window)


def trainer_spec(settings: TrainSettings) -> ProcessSpec:
    """Write the trainer's configuration and say how to start it; an old result is removed."""
    settings.path.mkdir(parents=True, exist_ok=True, mode=0o700)
    (settings.path / RESULT).unlink(missing_ok=True)
    write_atomic(settings.path / CONFIG, settings.model_dump_json(indent=2))
    return ProcessSpec(
        name="trainer",
        stage="train",
        role="train",
        argv=trainer_argv(settings.train.scale, settings.path / CONFIG),
        grace_s=settings.train.stop_grace_s,
    )


def read_result(folder: Path, captures_digest: str) -> DraftCheckpoint:
    """What the trainer exported, naming the captures that it learned from.

    Raises:
        JobError: There is no result.
    """
    path = folder / RESULT
    if not path.is_file():
        raise JobError(
            "the trainer ended without a result",
            where=str(path),
            hint="read the trainer's log; resume continues from its last checkpoint",
        )
    draft = DraftCheckpoint.model_validate_json(path.read_text(encoding="utf-8"))
    # A trainer that began before the end of the capture could not know it.
    return draft.model_copy(update={"config": {**draft.config, "captures": captures_digest}})


def target_name(profile: Profile) -> str:
    """The target's name for the exported configuration: never a path of this machine."""
    model = profile.target.model
    is_path = Path(model).expanduser().is_dir() or model.startswith((".", "/", "~"))
    return Path(model).name if is_path else model


def check_inputs(profile: Profile, captures: CaptureManifest, target: TargetConfig) -> None:
    """Refuse captures that another target or another profile made, or that hold nothing to learn.

    Raises:
        StageInputError: Naming the field and both values.
    """
    check_shape(profile, captures.layer_ids, captures.hidden_size, target)
    if captures.trainable_tokens == 0:
        raise StageInputError(
            f"the captures hold no answer token to learn from ({captures.samples} samples)",
            where="stream",
            hint="check that the target answers, raise stream.max_new_tokens or add prompts",
        )


def check_shape(profile: Profile, layer_ids: Sequence[int], hidden_size: int, target: TargetConfig) -> None:
    """Refuse captures (also those that are still to come) of other layers or another width.

    Raises:
        StageInputError: Naming the field and both values.
    """
    wanted = (*profile.target.aux_layer_ids, target.num_hidden_layers)
    if tuple(layer_ids) not in (wanted, tuple(profile.target.aux_layer_ids)):
        raise StageInputError(
            f"the captures hold layers {list(layer_ids)}, the draft needs {list(wanted)}",
            where="target.aux_layer_ids",
            hint="run again from stage stream, or set target.aux_layer_ids to the captured layers",
        )
    if hidden_size != target.hidden_size:
        raise StageInputError(
            f"the captures have hidden size {hidden_size}, the target {target.hidden_size}",
            where="target.model",
            hint="the captures are of another target; run again from stage stream",
        )
