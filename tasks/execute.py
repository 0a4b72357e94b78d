"""Runs a stage under its contract: reuse it or say why not, track it, time it, write its manifest last."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel

from profiles.schema import Profile
from tasks.errors import Stalled
from tasks.redaction import mask_error
from tasks.report.progress import RunProgress
from tasks.run_folder import RunFolder
from tasks.stage import MANIFEST, Stage, StageFolder, canonical, fingerprint, write_atomic
from tasks.stages import STARTED, stage_named, vouched_files
from tasks.validate.after_hang import checked

Result = TypeVar("Result", bound=BaseModel)
log = logging.getLogger("retrain_dspark")

# Ids, counts and reasons only.
_KEPT = (
    MANIFEST,
    "checks.json",
    "confidence_calibration.json",
    "config.json",
    "cost_table.json",
    "counters.json",
    "dropped.jsonl",
    "facts.json",
    "lost.jsonl",
    "metrics.jsonl",
    "result.json",
    "set_aside.jsonl",
)
_WITH_TEXT = ("token_counts.json", "answers/*.jsonl", "arms/*.json")


class StageTracker(Protocol):
    """What a stage needs of the tracker; `tasks.tracking.Tracker` is the real one."""

    def start(self, stage: str, params: Mapping[str, Any]) -> None: ...
    def follow(self, stage: str, metrics_file: Path) -> None: ...
    def log_params(self, stage: str, params: Mapping[str, Any]) -> None: ...
    def log_data(self, stage: str, name: str, digest: str, source: str) -> None: ...
    def tag(self, stage: str | None, tags: Mapping[str, str]) -> None: ...
    def send(self, operation: dict[str, Any]) -> None: ...
    def finish(
        self, stage: str, status: str, metrics: Mapping[str, float], files: tuple[Path, ...]
    ) -> None: ...


@dataclass
class StageRow:
    """One line of the summary."""

    name: str
    status: str
    seconds: float
    reason: str = ""


@dataclass
class RunContext:
    """What every stage is given.

    Args:
        launcher: Starts processes; anything with `start(spec, run)`.
        from_stage: Stage that is run again although it is valid, with all that follow.
        attempt: Identifies this attempt, so that a retry of it does not force the same stage twice.
    """

    run: RunFolder
    profile: Profile
    tracker: StageTracker
    progress: RunProgress
    launcher: Any
    from_stage: str | None = None
    attempt: str = ""
    rows: list[StageRow] = field(default_factory=list)
    begun: dict[str, float] = field(default_factory=dict)
    """Stage that works beside an earlier one, and when it began (monotonic seconds)."""

    def forced(self, stage: Stage[Any]) -> bool:
        """True if the user asked for this stage to run again and this attempt has not done so yet."""
        if self.from_stage is None or stage.number < stage_named(self.from_stage).number:
            return False
        done = self.run.facts().get("forced", {})
        return stage.name not in done.get(self.attempt, [])

    def note_forced(self, stage: Stage[Any]) -> None:
        done = dict(self.run.facts().get("forced", {}))
        done[self.attempt] = [*done.get(self.attempt, []), stage.name]
        self.run.remember(forced=done)


def execute_stage(
    ctx: RunContext,
    stage: Stage[Result],
    inputs: Mapping[str, str],
    work: Callable[[Path], Result],
    started_with: Mapping[str, str] | None = None,
) -> Result:
    """Return the stage's stored result if it is still valid, else do the work and store it.

    Args:
        inputs: Name -> digest of each earlier result that the stage reads; part of the fingerprint.
        work: Called with the stage's folder. The folder is empty unless an unfinished attempt with the same
            fingerprint left something to resume from.
        started_with: What stands for `inputs` when an unfinished attempt is compared, of a stage that begins
            before the digests of its inputs are known.
    """
    wanted = fingerprint(stage, ctx.profile, inputs)
    folder = ctx.run.stage(stage)
    stored, reason = (None, "asked for again") if ctx.forced(stage) else folder.load(wanted)
    if stored is not None:
        ctx.rows.append(StageRow(stage.name, "reused", 0.0))
        ctx.progress.stage_reused(stage.name)
        log.info("%s: reused", stage.name)
        return stored
    log.info("%s: runs, because it %s", stage.name, reason)
    if stage.name in ctx.begun:
        reason = f"began {time.monotonic() - ctx.begun.pop(stage.name):.0f} s ago, beside an earlier stage"
    else:
        _begin(ctx, stage, folder, fingerprint(stage, ctx.profile, started_with or inputs))
    return _run(ctx, stage, folder, wanted, reason, work)


def begin_stage(ctx: RunContext, stage: Stage[Any], started_with: Mapping[str, str]) -> Path:
    """Prepare the folder of a stage that begins beside an earlier one, and track it from now on.

    `execute_stage` then takes it over, with the same `started_with`; `end_begun` closes what it did not.
    """
    folder = ctx.run.stage(stage)
    _begin(ctx, stage, folder, fingerprint(stage, ctx.profile, started_with))
    ctx.begun[stage.name] = time.monotonic()
    log.info("%s: begins beside an earlier stage", stage.name)
    return folder.path


def end_begun(ctx: RunContext, status: str) -> None:
    """Close stages that began beside an earlier one which did not come to its end.

    Args:
        status: MLflow's, `FAILED` or `KILLED`.
    """
    for name, began in list(ctx.begun.items()):
        del ctx.begun[name]
        seconds = time.monotonic() - began
        ctx.rows.append(StageRow(name, "failed", seconds, "was ended with the stage that it ran beside"))
        files = _files(ctx, ctx.run.stage(stage_named(name)).path)
        ctx.tracker.finish(name, status, {"seconds": seconds}, files)


def _begin(ctx: RunContext, stage: Stage[Any], folder: StageFolder[Any], started: Mapping[str, Any]) -> None:
    _prepare(ctx, stage, folder, started)
    ctx.tracker.start(stage.name, {"profile": started["profile"], "inputs": started["inputs"]})
    ctx.tracker.follow(stage.name, folder.path / "metrics.jsonl")


def _run(
    ctx: RunContext,
    stage: Stage[Result],
    folder: StageFolder[Result],
    wanted: Mapping[str, Any],
    reason: str,
    work: Callable[[Path], Result],
) -> Result:
    ctx.progress.stage_started(stage.name, reason)
    row = StageRow(stage.name, "failed", 0.0, reason)
    ctx.rows.append(row)
    started = time.monotonic()
    status = "FAILED"
    metrics: dict[str, float] = {}
    try:
        result = work(folder.path)
        row.seconds = time.monotonic() - started
        folder.complete(result, wanted, vouched_files(stage, folder.path), row.seconds)
        (folder.path / STARTED).unlink(missing_ok=True)
        if ctx.from_stage is not None:
            ctx.note_forced(stage)
        row.status, status, metrics = "completed", "FINISHED", numbers(result.model_dump(mode="json"))
        log.info("%s: completed in %.1f s", stage.name, row.seconds)
        return result
    except Stalled as hang:
        row.reason = hang.what
        raise checked(hang, ctx.profile, ctx.run, ctx.launcher, ctx.progress) from hang
    except Exception as error:
        mask_error(error)
        row.reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise
    except BaseException:
        row.reason, status = "interrupted", "KILLED"
        raise
    finally:
        row.seconds = time.monotonic() - started
        ctx.progress.stage_ended(stage.name, row.status, row.seconds)
        ctx.tracker.finish(stage.name, status, {**metrics, "seconds": row.seconds}, _files(ctx, folder.path))


def _files(ctx: RunContext, folder: Path) -> tuple[Path, ...]:
    return small_files(folder, ctx.profile.report.show_text)


def _prepare(ctx: RunContext, stage: Stage[Any], folder: StageFolder[Any], wanted: Mapping[str, Any]) -> None:
    """Keep what an unfinished attempt at exactly this work left, or a damaged one that can be mended."""
    started = folder.path / STARTED
    text = canonical(wanted)
    begun = started.is_file() and started.read_text(encoding="utf-8") == text
    kept = begun or (stage.mends and folder.was_finished_as(wanted))
    if not kept or ctx.forced(stage):
        folder.clear()
    folder.invalidate()
    write_atomic(started, text)


def stage_digest(ctx: RunContext, stage: Stage[Any]) -> str:
    """Digest of a finished stage's output: an input of those after it."""
    return ctx.run.stage(stage).digest()


def numbers(value: Any, prefix: str = "", limit: int = 400) -> dict[str, float]:
    """Every number in a nested result, as `part/field`; lists and truth values are left out."""
    found: dict[str, float] = {}
    if isinstance(value, Mapping):
        for key, inner in value.items():
            found.update(numbers(inner, f"{prefix}/{key}" if prefix else str(key), limit))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        found[prefix] = float(value)
    return dict(list(found.items())[:limit])


def small_files(folder: Path, show_text: bool = False, max_bytes: int = 2 * 2**20) -> tuple[Path, ...]:
    """Files of a stage folder that are kept with the tracked run; only named ones leave the run folder.

    Args:
        show_text: Add the files that hold prompts, answers or counts of their tokens, as token ids.
    """
    found = [folder / name for name in _KEPT]
    if show_text:
        found += [path for pattern in _WITH_TEXT for path in sorted(folder.glob(pattern))]
    return tuple(path for path in found if path.is_file() and path.stat().st_size <= max_bytes)
