"""Loads a fetched draft as evaluation does, in a child process: this one needs no torch."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tasks.errors import PublishError, RetrainError
from tasks.execute import RunContext
from tasks.processes.job import run_job
from tasks.processes.launcher import ProcessSpec
from tasks.stage import write_atomic

NAME = "hub-load"
_STALL_S = 1800.0


def load_in_child(ctx: RunContext, folder: Path, target_dir: Path) -> None:
    """Load the draft of `folder` for the target of `target_dir`.

    Raises:
        PublishError: It does not load, with the reason.
    """
    progress = ctx.run.progress / f"{NAME}.jsonl"
    config = folder.with_name(f"{folder.name}.load.json")
    settings = {"draft_dir": str(folder), "target_dir": str(target_dir), "progress": str(progress)}
    write_atomic(config, json.dumps(settings))
    argv = (sys.executable, "-m", "tasks.evaluate.draft_load", str(config))
    try:
        run_job(
            ctx.launcher,
            ProcessSpec(name=NAME, stage="publish", role="train", argv=argv),
            ctx.run,
            progress=ctx.progress,
            progress_file=progress,
            stall_timeout_s=_STALL_S,
        )
    except RetrainError as error:
        raise PublishError(
            f"what came back from the hub does not load: {error.what}",
            where=error.where or str(folder),
            hint=error.hint or "run the publish stage again",
        ) from error
