"""The evaluate stage: replay everything, serve the arms one after another, compare, report."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiles.evaluation import DRAFT
from profiles.schema import Profile
from tasks.errors import StageInputError
from tasks.evaluate.arm_conditions import machine_of
from tasks.evaluate.arm_plan import DraftFolder, plan_arms
from tasks.evaluate.arm_record import LivePrompt
from tasks.evaluate.arm_series import MeasuredArms, measure_arms
from tasks.evaluate.arms import ArmsWork
from tasks.evaluate.assemble import ReplayRow
from tasks.evaluate.load.arm import loaded
from tasks.evaluate.models import EvaluationReport
from tasks.evaluate.prompt_sets import set_notes
from tasks.evaluate.report import build_report
from tasks.processes.job import run_job
from tasks.processes.launcher import Launcher, ProcessSpec
from tasks.run_folder import RunFolder
from tasks.serve.command import dspark_speculative_config
from tasks.stage import canonical, sha256_file, sha256_text, write_atomic
from tasks.stream.models import CaptureManifest
from tasks.train.models import DraftCheckpoint

REPLAY_STALL_S = 300.0


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


def evaluate(
    profile: Profile,
    run: RunFolder,
    folder: Path,
    captures: CaptureManifest,
    log_dir: Path,
    draft: DraftCheckpoint,
    draft_dir: Path,
    target_dir: Path,
    launcher: Launcher,
    progress: Any,
    incumbent: tuple[str, Path] | None = None,
) -> EvaluationReport:
    """Measure a draft by replay and live, and compare it with the incumbent on the same answers.

    Args:
        folder: Stage folder; finished replays (`answers/`) and arms (`arms/`) in it are reused.
        log_dir: Hidden-state log with an `evaluate` split.
        draft_dir: Export in Speculators format.
        target_dir: The target in Hugging Face format.
        incumbent: Version and folder of the draft to compare with.

    Raises:
        StageInputError: No evaluation answers, or the draft does not fit the log.
        ServiceError: A server did not start, or died.
    """
    here = Evaluation(profile, run, folder, captures, log_dir, target_dir, launcher, progress)
    rows = _replay(here, "replay", draft_dir, dict(draft.files))
    notes: list[str] = set_notes(profile.prompts.evaluate)
    old_rows = _replay_incumbent(here, incumbent, notes) if incumbent else None
    prompts = live_prompts(rows, profile.evaluate.live.per_domain)
    old = DraftFolder(incumbent[1], draft_files(incumbent[1])) if incumbent and old_rows is not None else None
    arms = _arms(here, prompts, DraftFolder(draft_dir, dict(draft.files)), old, "; ".join(notes))
    report = build_report(
        profile,
        rows=rows,
        plain=arms.plain,
        draft=arms.records[DRAFT],
        arms=arms,
        block_size=draft.block_size,
        incumbent=incumbent[0] if incumbent and old_rows is not None else None,
        incumbent_rows=old_rows,
        notes=notes,
    )
    return report.model_copy(update={"load": loaded(profile, list(arms.records), folder)})


def live_prompts(rows: Sequence[ReplayRow], per_domain: int) -> list[LivePrompt]:
    """The first `per_domain` evaluation prompts of each domain, as the tokens that were captured."""
    taken: dict[str, int] = {}
    prompts = []
    for row in rows:
        if taken.get(row.domain, 0) < per_domain:
            taken[row.domain] = taken.get(row.domain, 0) + 1
            prompts.append(LivePrompt(prompt_id=row.prompt_id, domain=row.domain, token_ids=row.prompt_ids))
    order = list(dict.fromkeys(prompt.domain for prompt in prompts))
    return sorted(prompts, key=lambda prompt: order.index(prompt.domain))


def walk_lengths(profile: Profile) -> tuple[int, int]:
    """Answer tokens that are walked: for the replay measurement, and for the comparison with live."""
    return profile.evaluate.replay_max_new_tokens, profile.evaluate.live.max_new_tokens


def _arms(
    here: Evaluation,
    prompts: Sequence[LivePrompt],
    draft: DraftFolder,
    incumbent: DraftFolder | None,
    reason: str,
) -> MeasuredArms:
    """Measure every arm; `reason` says why there is no incumbent, if one was meant to be there."""
    why = reason or "no draft has been published before"
    plan = plan_arms(here.profile, here.target_dir, draft, incumbent, why)
    work = ArmsWork(
        profile=here.profile,
        run=here.run,
        folder=here.folder / "arms",
        prompts=prompts,
        target_dir=here.target_dir,
        target_digest=here.captures.target,
        launcher=here.launcher,
        progress=here.progress,
        machine=machine_of(here.run),
    )
    return measure_arms(work, plan)


def draft_files(folder: Path) -> dict[str, str]:
    """Digests of the files that make a draft."""
    files = {path.name: sha256_file(path) for path in sorted(folder.glob("*.safetensors"))}
    return {**files, "config.json": sha256_file(folder / "config.json")}


def _replay(here: Evaluation, name: str, draft_dir: Path, draft_files: Mapping[str, str]) -> list[ReplayRow]:
    """Replay a draft in its own process, unless the same replay is already there."""
    out = _rows_file(here, name, draft_files)
    answers = out.parent
    answers.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not out.exists():
        config = {
            "draft_dir": str(draft_dir),
            "target_dir": str(here.target_dir),
            "log_dir": str(here.log_dir),
            "out": str(out),
            "progress": str(here.run.progress / f"{name}.jsonl"),
            "lengths": sorted(set(walk_lengths(here.profile))),
            "threads": here.profile.train.threads or 0,
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
    lines = out.read_text(encoding="utf-8").splitlines()
    if not lines:
        raise StageInputError(
            "the hidden-state log holds no evaluation answers",
            where=str(here.log_dir),
            hint="check prompts.evaluate, then run again from stage stream",
        )
    return [ReplayRow.of(json.loads(line)) for line in lines]


def _rows_file(here: Evaluation, name: str, draft_files: Mapping[str, str]) -> Path:
    """Where the replay of a draft on these captures lies; its slots lie beside it."""
    inputs = {
        "captures": here.captures.digest,
        "draft": dict(draft_files),
        "lengths": sorted(set(walk_lengths(here.profile))),
    }
    return here.folder / "answers" / f"{name}-{sha256_text(canonical(inputs))[:16]}.jsonl"


def _replay_incumbent(
    here: Evaluation, incumbent: tuple[str, Path], notes: list[str]
) -> list[ReplayRow] | None:
    """Replay the incumbent on the same log; None and a note if it cannot read this log."""
    version, folder = incumbent
    reason = incompatible(folder, here.captures)
    if reason:
        notes.append(f"incumbent {version} was not measured: {reason}")
        return None
    return _replay(here, "replay-incumbent", folder, draft_files(folder))


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
