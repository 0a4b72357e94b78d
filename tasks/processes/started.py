"""A finite child process that runs beside other work: started now, looked at now and then, ended at last."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tasks.errors import Stalled
from tasks.processes.child import ERROR_FILE_ENV
from tasks.processes.job import ProgressLines, failure_of, stalled
from tasks.processes.launcher import Launcher, ProcessSpec
from tasks.run_folder import RunFolder


class StartedJob:
    """A job that nobody waits for yet; `tasks.processes.job.run_job` is for one that is waited for.

    Args:
        progress_file: JSON lines of `ProgressFile`; lines already there are passed over.

    Raises:
        ServiceError: It could not be started.
    """

    def __init__(self, launcher: Launcher, spec: ProcessSpec, run: RunFolder, progress_file: Path):
        self._error_file = run.progress / f"{spec.name}.error.json"
        self._error_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._error_file.unlink(missing_ok=True)
        self._lines = ProgressLines(progress_file)
        env = {**spec.env, ERROR_FILE_ENV: str(self._error_file)}
        self._handle = launcher.start(replace(spec, env=env), run)

    def rows(self) -> list[dict[str, Any]]:
        """Lines of progress since the last call."""
        return list(self._lines)

    def has_ended(self) -> bool:
        """True if it ended well.

        Raises:
            RetrainError: The error that it reported, of its own class.
            JobError: It ended without saying why; with the end of its log.
        """
        status = self._handle.poll()
        if status is not None and status != 0:
            raise failure_of(self._handle, status, self._error_file)
        return status == 0

    def stalled(self, silent_s: float) -> Stalled:
        """The error of a job that has shown no progress for so long."""
        return stalled(self._handle, silent_s)

    def stop(self) -> None:
        """End it with everything it started; may be called again."""
        self._handle.stop()
