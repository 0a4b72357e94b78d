"""Run a finite child process: follow its progress, end it when it stalls, raise its error."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tasks import errors
from tasks.errors import JobError, RetrainError, Stalled
from tasks.processes.child import ERROR_FILE_ENV
from tasks.processes.launcher import Handle, Launcher, ProcessSpec
from tasks.processes.service import running
from tasks.report.progress import Progress
from tasks.run_folder import RunFolder

_POLL_S = 0.1


def nothing() -> None:
    """No watch, and nothing to do at a fault."""


def run_job(
    launcher: Launcher,
    spec: ProcessSpec,
    run: RunFolder,
    *,
    progress: Progress,
    progress_file: Path,
    stall_timeout_s: float,
    timeout_s: float | None = None,
    watch: Callable[[], None] = nothing,
    on_fault: Callable[[], None] = nothing,
) -> None:
    """Start `spec` and wait for its end.

    Args:
        progress_file: JSON lines of `ProgressFile`; lines already there are passed over.
        stall_timeout_s: Longest time without a new line of progress, seconds.
        timeout_s: Longest time in all, seconds.
        watch: Called while the child runs, often; what it raises ends the child.
        on_fault: Called when the child failed or is to be ended early, also by Ctrl-C, before it gets its
            time to end: what ends beside it need not wait for it. Must not block.

    Raises:
        RetrainError: The error that the child reported, of its own class.
        JobError: It stalled, took too long, or ended without saying why; with the end of its log.
    """
    error_file = run.progress / f"{spec.name}.error.json"
    error_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    error_file.unlink(missing_ok=True)
    spec = replace(spec, env={**spec.env, ERROR_FILE_ENV: str(error_file)})
    lines = ProgressLines(progress_file)
    started = last = time.monotonic()
    with running(launcher, spec, run) as handle:
        try:
            while (status := handle.poll()) is None:
                last = time.monotonic() if _show(lines, progress) else last
                watch()
                _check_time(handle, started, last, stall_timeout_s, timeout_s)
                time.sleep(_POLL_S)
        except BaseException:
            on_fault()
            raise
        _show(lines, progress)
    if status != 0:
        on_fault()
        raise failure_of(handle, status, error_file)


class ProgressLines:
    """Complete new lines of a file that another process appends to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.exists() else 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if not self._path.exists():
            return
        with open(self._path, "rb") as stream:
            stream.seek(self._offset)
            for line in stream:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                yield json.loads(line)


def _show(lines: ProgressLines, progress: Progress) -> bool:
    rows = list(lines)
    for row in rows:
        progress.update(
            done=row["done"], total=row["total"], unit=row["unit"], metrics=row["metrics"], note=row["note"]
        )
    return bool(rows)


def _check_time(
    handle: Handle, started: float, last: float, stall_timeout_s: float, timeout_s: float | None
) -> None:
    now = time.monotonic()
    if now - last > stall_timeout_s:
        raise stalled(handle, stall_timeout_s)
    if timeout_s is not None and now - started > timeout_s:
        raise JobError(
            f"{handle.spec.name} did not end within {timeout_s:.0f} s",
            where=str(handle.log),
            log_tail=handle.tail(),
        )


def stalled(handle: Handle, silent_s: float) -> Stalled:
    """The error of a child that has shown no progress for so long."""
    return Stalled(
        f"{handle.spec.name} made no progress for {silent_s:.0f} s",
        where=str(handle.log),
        hint="see the log; raise the stall limit if the machine is only slow",
        log_tail=handle.tail(),
    )


def failure_of(handle: Handle, status: int, error_file: Path) -> RetrainError:
    """The error that a child reported, else one with its exit status and the end of its log."""
    tail = handle.tail()
    try:
        row = json.loads(error_file.read_text(encoding="utf-8"))
        kind = getattr(errors, row["kind"], JobError)
        if not (isinstance(kind, type) and issubclass(kind, RetrainError)):
            kind = JobError
        log_tail = tail if kind is JobError else ()
        return kind(row["what"], where=row["where"] or str(handle.log), hint=row["hint"], log_tail=log_tail)
    except (OSError, ValueError, KeyError):
        pass
    how = f"exit status {status}" if status > 0 else f"signal {signal.Signals(-status).name}"
    memory = "the kernel may have ended it for lack of memory" if status == -signal.SIGKILL else ""
    return JobError(f"{handle.spec.name} ended with {how}", where=str(handle.log), hint=memory, log_tail=tail)
