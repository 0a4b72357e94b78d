"""The evaluate stage: replay everything, serve the arms one after another, compare, report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from profiles.evaluation import DRAFT
from profiles.schema import Profile
from tasks.evaluate import replay_detail
from tasks.evaluate.arm_conditions import machine_of
from tasks.evaluate.arm_plan import DraftFolder, plan_arms
from tasks.evaluate.arm_record import LivePrompt
from tasks.evaluate.arm_series import MeasuredArms, measure_arms
from tasks.evaluate.arms import ArmsWork
from tasks.evaluate.assemble import ReplayRow
from tasks.evaluate.conditions import differences
from tasks.evaluate.draft_check import check_config, record_beside, record_of
from tasks.evaluate.load.arm import loaded
from tasks.evaluate.models import EvaluationReport
from tasks.evaluate.policy.core import with_policy
from tasks.evaluate.prompt_sets import set_notes
from tasks.evaluate.replay import check_file, slots_file
from tasks.evaluate.replays import (
    Evaluation,
    detail_of,
    draft_files,
    expected,
    read_rows,
    replay_draft,
    replay_incumbent,
)
from tasks.evaluate.report import build_report
from tasks.evaluate.worth.gather import with_worth
from tasks.processes.launcher import Launcher
from tasks.run_folder import RunFolder
from tasks.serve.command import dspark_speculative_config
from tasks.stage import canonical, sha256_text
from tasks.stream.models import CaptureManifest
from tasks.train.models import DraftCheckpoint


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
    record = record_of(draft) or record_beside(draft_dir)
    check_config(draft_dir, expected(here, record))
    replay = replay_draft(here, "replay", draft_dir, dict(draft.files), record)
    rows = read_rows(here, replay)
    notes = [*set_notes(profile.prompts.evaluate), *replay_detail.verdict_notes(check_file(replay))]
    absent: list[str] = []
    old_rows = replay_incumbent(here, incumbent, absent) if incumbent else None
    prompts = live_prompts(rows, profile.evaluate.live.per_domain)
    old = DraftFolder(incumbent[1], draft_files(incumbent[1])) if incumbent and old_rows is not None else None
    arms = _arms(here, prompts, DraftFolder(draft_dir, dict(draft.files)), old, "; ".join(absent))
    report = build_report(
        profile,
        rows=rows,
        plain=arms.plain,
        draft=arms.records[DRAFT],
        arms=arms,
        block_size=draft.block_size,
        incumbent=incumbent[0] if incumbent and old_rows is not None else None,
        incumbent_rows=old_rows,
        notes=[*notes, *absent],
        no_incumbent="; ".join(absent),
    )
    return with_worth(
        profile,
        _in_depth(here, report, rows, replay, draft),
        rows=rows,
        incumbent_rows=old_rows,
        draft_dir=draft_dir,
        run_dir=run.path,
        differences=_other_conditions(arms),
    )


def _other_conditions(arms: MeasuredArms) -> dict[str, tuple[str, ...]]:
    """Arm -> what was not as for the target alone, besides its method: such an arm is not compared."""
    plain = arms.plain.conditions
    return {
        name: differences(plain, record.conditions)
        for name, record in arms.records.items()
        if plain is not None and record.conditions is not None
    }


def _in_depth(
    here: Evaluation,
    report: EvaluationReport,
    rows: Sequence[ReplayRow],
    replay: Path,
    draft: DraftCheckpoint,
) -> EvaluationReport:
    """The report with what replay, load and confidence say beyond acceptance."""
    arms = [arm.name for arm in report.arms]
    more = {
        "replay_detail": detail_of(here, rows, replay),
        "load": loaded(here.profile, arms, here.folder),
    }
    return with_policy(
        report.model_copy(update=more),
        slots_file(replay),
        here.profile.evaluate,
        here.folder,
        base=dspark_speculative_config(here.profile, ""),
        draft=sha256_text(canonical(dict(draft.files))),
        captures=here.captures.digest,
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
