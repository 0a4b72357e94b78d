"""Opens a run for the flow: profile, folder, log, tracker and display; and closes it on every way out."""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from filelock import FileLock, Timeout
from pydantic import BaseModel

from flows.closing import close_folder
from flows.finding import run_of_flow_run
from flows.logs import flow_log, hide_known_tracebacks
from flows.repairing import repair
from profiles.load import LoadedProfile, ProfileProblem, load_profile
from profiles.overrides import override_values
from profiles.schema import Profile
from tasks.budget import Spending, WatchedLauncher, WatchedProgress
from tasks.errors import ProfileError, RetrainError, UsageError
from tasks.execute import RunContext
from tasks.processes.guard import close_registry
from tasks.processes.launcher import launcher_of
from tasks.profile_secrets import refuse_secrets
from tasks.publish.task import check_hub
from tasks.redaction import redact
from tasks.report.progress import LineProgress, RunProgress, shown_progress
from tasks.run_folder import RunFolder, create_run, new_run_id, open_run, run_root
from tasks.stage import MANIFEST
from tasks.stages import PUBLISH
from tasks.tracking import OWNER, open_tracker, owner_tag, tracking_uri
from tasks.tracking_queue import Tracker

log = logging.getLogger("retrain_dspark")


@contextmanager
def opened_run(
    profile: str | Profile, overrides: BaseModel | None, run_id: str | None, from_stage: str | None
) -> Iterator[RunContext]:
    """The context of this flow run's stages.

    A flow run that is retried finds its folder again by its id; `run_id` names another one to resume.
    """
    hide_known_tracebacks()
    flow_run_id, url = _flow_run()
    root = run_root()
    loaded, found = _profile(root, profile, override_values(overrides), run_id, flow_run_id)
    refuse_secrets(loaded.profile)
    known = RunFolder(root / found) if found else None
    run = known or create_run(root, new_run_id(loaded.profile.name, flow_run_id), loaded.profile)
    with _only_one(run), flow_log(run):
        if known:  # only now: until here another process may be working on it with its own profile
            create_run(root, run.run_id, loaded.profile)
        # Before this run is introduced: what a killed attempt at the same run left is known by its entry.
        for line in repair(root, own_flow_run=flow_run_id):
            log.info("repaired: %s", line)
        _introduce(run, loaded, flow_run_id, override_values(overrides))
        progress = shown_progress() or LineProgress(_run_logger().info)
        tracker = open_tracker(run, loaded.profile.tracking.experiment, _tags(run, url), progress.say)
        spending = Spending(run, loaded.profile)
        ctx = RunContext(
            run,
            loaded.profile,
            tracker,
            WatchedProgress(progress, spending),
            WatchedLauncher(launcher_of(loaded.profile, run, _waiting(progress)), spending),
            from_stage,
            flow_run_id,
        )
        with _closing(ctx, tracker, spending):
            tracker.open(loaded.profile.model_dump(mode="json"), run.path / "profile.json")
            run.remember(
                mlflow_tracking_uri=redact(tracking_uri(root)),
                mlflow_parent_run_id=tracker.ids.get(run.run_id),
            )
            if not (run.stage(PUBLISH).path / MANIFEST).exists():
                check_hub(loaded.profile)
            yield ctx


def ending(ctx: RunContext) -> Any:
    """What the flow returns: the summary, or a completed state called `Held` with the reasons."""
    from prefect.states import Completed

    from tasks.report.summary import read_summary

    summary = read_summary(ctx.run)
    if summary["status"] == "held":
        return Completed(name="Held", message="Not promoted: " + "; ".join(summary["decision"]["reasons"]))
    return summary


@contextmanager
def _closing(ctx: RunContext, tracker: Tracker, spending: Spending) -> Iterator[None]:
    """Record how the run ended: summary, report, MLflow."""
    started = time.monotonic()
    status, ended = "FAILED", "failed"
    fault: Exception | None = None
    try:
        yield
        status, ended = "FINISHED", "completed"
    except Exception as error:
        fault = error
        if not isinstance(error, RetrainError):
            log.exception("unexpected error")
        raise
    except BaseException:
        status, ended = "KILLED", "cancelled"
        raise
    finally:
        spending.keep()
        ctx.launcher.close()
        ctx.run.remember(mlflow_parent_run_id=tracker.ids.get(ctx.run.run_id))
        close_folder(ctx.run, ended, ctx.rows, fault, time.monotonic() - started)
        for name in ("summary.json", "report.html"):
            tracker.log_file(None, ctx.run.path / name)
        for path in sorted((ctx.run.path / "figures").glob("*.png")):
            tracker.log_file(None, path, "figures")
        tracker.close(status)
        close_registry(ctx.run.services)


def _profile(
    root: Path, profile: str | Profile, overrides: dict[str, Any], run_id: str | None, flow_run_id: str
) -> tuple[LoadedProfile, str | None]:
    """The profile of this run, and the id of the folder that exists already, if any."""
    try:
        if run_id is not None:
            stored = open_run(root, run_id).profile()
            return load_profile(stored.model_dump(mode="json"), overrides), run_id
        known = run_of_flow_run(root, flow_run_id)
        return load_profile(profile, overrides), known.run_id if known else None
    except ProfileProblem as problem:
        raise ProfileError(problem.what, where=problem.where, hint=problem.hint) from None


@contextmanager
def _only_one(run: RunFolder) -> Iterator[None]:
    """Keep a second process out of the run; the lock goes with the process that holds it."""
    lock = FileLock(run.path / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        owner = str(run.facts().get("owner", "")).split(" ")
        raise UsageError(
            f"run {run.run_id} is being worked on by process {owner[2] if len(owner) == 4 else '?'}",
            where=str(run.path),
            hint="wait for it, or end that process",
        ) from None
    try:
        yield
    finally:
        lock.release()


def _introduce(run: RunFolder, loaded: LoadedProfile, flow_run_id: str, overrides: dict[str, Any]) -> None:
    """Write into `run.json` who runs this and where else it is known; an earlier ending is taken back."""
    facts = run.facts()
    for name in ("ended_at", "status", "error"):
        facts.pop(name, None)
    others = [known for known in facts.get("flow_run_ids", []) if known != flow_run_id]
    run.replace_facts(
        {
            **facts,
            "created_at": facts.get("created_at") or datetime.now(UTC).isoformat(timespec="seconds"),
            "flow_run_id": flow_run_id,
            "flow_run_ids": [*others, flow_run_id],
            "owner": owner_tag(),
            "overrides": overrides or facts.get("overrides", {}),
            "origins": loaded.origins,
            "profile_digest": loaded.digest,
            **_git_facts(),
        }
    )


def _tags(run: RunFolder, flow_run_url: str) -> dict[str, str]:
    """Tags of the MLflow runs: with them flow run, commit and profile are found from MLflow."""
    facts = run.facts()
    tags = {
        OWNER: facts["owner"],
        "dspark.run_id": run.run_id,
        "dspark.profile": run.profile().name,
        "dspark.profile_digest": facts["profile_digest"],
        "dspark.host": facts["owner"].split(" ")[0],
        "dspark.run_folder": str(run.path),
        "prefect.flow_run_id": facts["flow_run_id"],
        "prefect.flow_run_url": flow_run_url,
        "mlflow.source.git.commit": facts.get("git_commit", ""),
        "mlflow.source.git.branch": facts.get("git_branch", ""),
        "dspark.dirty": str(facts.get("git_dirty", "")),
        "mlflow.source.name": "retrain-dspark",
        "mlflow.user": os.environ.get("USER", ""),
    }
    return {name: value for name, value in tags.items() if value}


def _git_facts() -> dict[str, Any]:
    """Commit, branch and whether the checkout has changes; empty outside a checkout."""

    def git(*words: str) -> str:
        done = subprocess.run(
            ("git", *words),
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
        return done.stdout.strip()

    try:
        return {
            "git_commit": git("rev-parse", "HEAD"),
            "git_branch": git("rev-parse", "--abbrev-ref", "HEAD"),
            "git_dirty": bool(git("status", "--porcelain", "--untracked-files=no")),
        }
    except (OSError, subprocess.SubprocessError):
        return {}


def _flow_run() -> tuple[str, str]:
    """Id and address of the current flow run; a fresh id outside one."""
    from prefect.runtime import flow_run

    return str(flow_run.id or uuid4()), str(flow_run.ui_url or "")


def flow_run_of_now() -> str:
    """Id of the current flow run; empty outside one."""
    from prefect.runtime import flow_run

    return str(flow_run.id or "")


def _waiting(progress: RunProgress) -> Callable[[float, str], None]:
    """Shows how long nodes have been waited for, and why."""

    def tell(seconds: float, note: str) -> None:
        progress.update(done=round(seconds), total=None, unit="s", note=note)

    return tell


def _run_logger() -> Any:
    from prefect.exceptions import MissingContextError
    from prefect.logging import get_run_logger

    try:
        return get_run_logger()
    except MissingContextError:
        return log
