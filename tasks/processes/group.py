"""Several processes, all or none."""

from __future__ import annotations

import time
from collections.abc import Sequence

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
    profile = run.profile()
    launcher.place(profile, run, specs[0].stage, specs[0].role)  # waits for nodes
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
