"""Several processes, all or none."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from tasks.errors import ServiceError
from tasks.processes.launcher import Handle, Launcher, ProcessSpec
from tasks.run_folder import RunFolder


def start_all(
    launcher: Launcher, specs: Sequence[ProcessSpec], run: RunFolder, deadline_s: float = 120.0
) -> tuple[Handle, ...]:
    """Start all of `specs`, or none: what was started before one failed is ended.

    Args:
        deadline_s: Longest time from the first start to the last, seconds; waiting for nodes is not in it.

    Raises:
        ServiceError: One could not be started, ended at once, or it took too long.
    """
    if not specs:
        return ()
    if len(specs) > 1:
        launcher.place(run.profile(), run, specs[0].stage, specs[0].role)  # waits for nodes
    handles: list[Handle] = []
    deadline = time.monotonic() + deadline_s
    try:
        for spec in specs:
            handles.append(launcher.start(spec, run))
            if time.monotonic() > deadline:
                raise ServiceError(
                    f"{len(handles)} of {len(specs)} processes were started in {deadline_s:.0f} s",
                    where=", ".join(one.name for one in specs),
                    hint="see their logs; the nodes or their file system are slow",
                )
    except BaseException:
        for handle in reversed(handles):
            handle.stop()
        raise
    return tuple(handles)


class Together:
    """Processes of which none is of use without the others, seen as one: the first's, until another ends.

    Args:
        handles: At least one; the first one is the one that answers.
    """

    def __init__(self, handles: Sequence[Handle]):
        self._handles = tuple(handles)
        self._shown = self._handles[0]
        self.spec = self._shown.spec
        self.pid = self._shown.pid

    @property
    def log(self) -> Path:
        """Log of the one that ended first; of the first one while all run."""
        return self._shown.log

    def poll(self) -> int | None:
        for handle in self._handles:
            if (status := handle.poll()) is not None:
                self._shown = handle
                return status
        return None

    def listens_on(self, port: int) -> bool:
        return self._handles[0].listens_on(port)

    def stop(self, grace_s: float | None = None) -> None:
        for handle in self._handles:
            handle.stop(grace_s)

    def tail(self, lines: int = 25) -> list[str]:
        return self._shown.tail(lines)


def start_together(launcher: Launcher, specs: Sequence[ProcessSpec], run: RunFolder) -> Handle:
    """Start all of `specs`, or none, as one process; errors as of `start_all`."""
    handles = start_all(launcher, specs, run)
    return handles[0] if len(handles) == 1 else Together(handles)
