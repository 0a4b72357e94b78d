"""Replays of an evaluation: each draft in a process of its own on the same captures, and reused."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiles.schema import Profile
from tasks.errors import StageInputError
from tasks.evaluate import replay_detail
from tasks.evaluate.assemble import ReplayRow
from tasks.evaluate.draft_check import Expected, TrainingRecord, check_config, record_beside
from tasks.evaluate.replay import check_file, slots_file
from tasks.evaluate.replay_models import ReplayDetail
from tasks.measure.intervals import Bootstrap
from tasks.processes.job import run_job
from tasks.processes.launcher import Launcher, ProcessSpec
from tasks.run_folder import RunFolder
from tasks.serve.target_config import read_target_config
from tasks.stage import canonical, sha256_file, sha256_text, write_atomic
from tasks.stream.models import CaptureManifest
from tasks.train.core import target_name

REPLAY_STALL_S = 300.0
REPLAY_FORMAT = 2
"""Of a replay's rows; those of an older one are made again."""


@dataclass(frozen=True)
class Evaluation:
    """Where an evaluation works and with what; shared by its steps."""

    profile: Profile
    run: RunFolder
    folder: Path
    captures: CaptureManifest
    log_dir: Path
    target_dir: Path
    launcher: Launcher
    progress: Any


def walk_lengths(profile: Profile) -> tuple[int, int]:
    """Answer tokens that are walked: for the replay measurement, and for the comparison with live."""
    return profile.evaluate.replay_max_new_tokens, profile.evaluate.live.max_new_tokens


def expected(here: Evaluation, record: TrainingRecord | None) -> Expected:
    """What a draft has to fit, to be measured here."""
    profile = here.profile
    names = [target_name(profile), profile.serve.served_name, here.target_dir.name]
    if profile.publish.card.base_model:
        names.append(profile.publish.card.base_model)  # what an incumbent that was published says
    return Expected(
        target=read_target_config(here.target_dir),
        names=(*names, *profile.evaluate.replay.verifier_names),
        layer_ids=here.captures.layer_ids[:-1],
        revision=profile.target.revision,
        digest=here.captures.target,
        record=record,
    )


def replay_draft(
    here: Evaluation,
    name: str,
    draft_dir: Path,
    draft_files: Mapping[str, str],
    record: TrainingRecord | None,
) -> Path:
    """Replay a draft in its own process, unless the same replay is already there; returns its rows' file."""
    answers = here.folder / "answers"
    answers.mkdir(parents=True, exist_ok=True, mode=0o700)
    lengths = sorted(set(walk_lengths(here.profile)))
    options = replay_detail.replay_config(here.profile.evaluate.replay, record)
    inputs = {
        "format": REPLAY_FORMAT,
        "captures": here.captures.digest,
        "draft": dict(draft_files),
        "lengths": lengths,
        **options,
    }
    out = answers / f"{name}-{sha256_text(canonical(inputs))[:16]}.jsonl"
    if not out.exists():
        config = {
            "draft_dir": str(draft_dir),
            "target_dir": str(here.target_dir),
            "log_dir": str(here.log_dir),
            "out": str(out),
            "progress": str(here.run.progress / f"{name}.jsonl"),
            "lengths": lengths,
            "threads": here.profile.train.threads or 0,
            **options,
        }
        config_file = answers / f"{name}.config.json"
        write_atomic(config_file, json.dumps(config, indent=2))
        argv = (sys.executable, "-m", "tasks.evaluate.replay", str(config_file))
        run_job(
            here.launcher,
            ProcessSpec(name=name, stage="evaluate", role="train", argv=argv),
            here.run,
            progress=here.progress,
            progress_file=Path(str(config["progress"])),
            stall_timeout_s=REPLAY_STALL_S,
        )
    return out


def read_rows(here: Evaluation, replay: Path) -> list[ReplayRow]:
    """The rows of a replay.

    Raises:
        StageInputError: There are none.
    """
    lines = replay.read_text(encoding="utf-8").splitlines()
    if not lines:
        raise StageInputError(
            "the hidden-state log holds no evaluation answers",
            where=str(here.log_dir),
            hint="check prompts.evaluate, then run again from stage stream",
        )
    return [ReplayRow.of(json.loads(line)) for line in lines]


def detail_of(here: Evaluation, rows: Sequence[ReplayRow], replay: Path) -> ReplayDetail:
    settings = here.profile.evaluate
    return replay_detail.replay_detail(
        rows,
        settings.replay_max_new_tokens,
        settings.replay,
        Bootstrap(settings.bootstrap_samples, settings.confidence, settings.seed),
        check_file(replay),
        slots_file(replay),
    )


def replay_incumbent(
    here: Evaluation, incumbent: tuple[str, Path], notes: list[str]
) -> list[ReplayRow] | None:
    """Replay the incumbent on the same log; None and a note if it cannot read this log."""
    version, folder = incumbent
    reason = incompatible(folder, here.captures)
    if reason:
        notes.append(f"incumbent {version} was not measured: {reason}")
        return None
    record = record_beside(folder)
    try:
        check_config(folder, expected(here, record))
        return read_rows(here, replay_draft(here, "replay-incumbent", folder, draft_files(folder), record))
    except StageInputError as error:
        notes.append(f"incumbent {version} was not measured: {error.what}")
        return None


def draft_files(folder: Path) -> dict[str, str]:
    """Digests of the files that make a draft."""
    files = {path.name: sha256_file(path) for path in sorted(folder.glob("*.safetensors"))}
    return {**files, "config.json": sha256_file(folder / "config.json")}


def incompatible(draft_dir: Path, captures: CaptureManifest) -> str:
    """Why a draft cannot be replayed on a log; empty if it can."""
    try:
        config = json.loads((draft_dir / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return f"its config.json cannot be read ({error})"
    layers = tuple(config.get("aux_hidden_state_layer_ids") or ())
    if layers != captures.layer_ids[:-1]:
        return f"it reads layers {list(layers)}, the log holds {list(captures.layer_ids[:-1])}"
    width = config.get("transformer_layer_config", {}).get("hidden_size")
    if width != captures.hidden_size:
        return f"its hidden size is {width}, the log's {captures.hidden_size}"
    return ""
