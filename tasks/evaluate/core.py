"""The evaluate stage: replay everything, serve two arms, compare, report."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiles.schema import Profile
from tasks.errors import StageInputError
from tasks.evaluate.arms import DRAFT, PLAIN, arm_fingerprint, measure_arm
from tasks.evaluate.assemble import ReplayRow
from tasks.evaluate.live import ArmRecord, LivePrompt
from tasks.evaluate.models import EvaluationReport
from tasks.evaluate.prompt_sets import set_notes
from tasks.evaluate.report import build_report
from tasks.evaluate.worth.gather import with_worth
from tasks.processes.job import run_job
from tasks.processes.launcher import Launcher, ProcessSpec
from tasks.run_folder import RunFolder
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
    plain = _arm(here, PLAIN, prompts, None, {})
    drafted = _arm(here, DRAFT, prompts, draft_dir, dict(draft.files))
    report = build_report(
        profile,
        rows=rows,
        plain=plain,
        draft=drafted,
        block_size=draft.block_size,
        incumbent=incumbent[0] if incumbent and old_rows is not None else None,
        incumbent_rows=old_rows,
        notes=notes,
    )
    return with_worth(
        profile, report, rows=rows, incumbent_rows=old_rows, draft_dir=draft_dir, run_dir=run.path
    )


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


def _arm(
    here: Evaluation,
    name: str,
    prompts: Sequence[LivePrompt],
    draft_dir: Path | None,
    draft_files: Mapping[str, str],
) -> ArmRecord:
    return measure_arm(
        here.profile,
        here.run,
        here.folder / "arms",
        name,
        prompts=prompts,
        fingerprint=arm_fingerprint(here.profile, here.captures.target, draft_files, prompts),
        target_dir=here.target_dir,
        draft_dir=draft_dir,
        launcher=here.launcher,
        progress=here.progress,
    )


def _replay(here: Evaluation, name: str, draft_dir: Path, draft_files: Mapping[str, str]) -> list[ReplayRow]:
    """Replay a draft in its own process, unless the same replay is already there."""
    answers = here.folder / "answers"
    answers.mkdir(parents=True, exist_ok=True, mode=0o700)
    lengths = sorted(set(walk_lengths(here.profile)))
    inputs = {
        "captures": here.captures.digest,
        "draft": dict(draft_files),
        "lengths": lengths,
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


def _replay_incumbent(
    here: Evaluation, incumbent: tuple[str, Path], notes: list[str]
) -> list[ReplayRow] | None:
    """Replay the incumbent on the same log; None and a note if it cannot read this log."""
    version, folder = incumbent
    reason = incompatible(folder, here.captures)
    if reason:
        notes.append(f"incumbent {version} was not measured: {reason}")
        return None
    files = {path.name: sha256_file(path) for path in sorted(folder.glob("*.safetensors"))}
    files["config.json"] = sha256_file(folder / "config.json")
    return _replay(here, "replay-incumbent", folder, files)


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
