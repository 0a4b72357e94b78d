"""One long-lived process for the length of a `with` block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tasks.processes.launcher import Handle, Launcher, ProcessSpec
from tasks.run_folder import RunFolder


@contextmanager
def running(launcher: Launcher, spec: ProcessSpec, run: RunFolder) -> Iterator[Handle]:
    """Start `spec`; on any way out, also Ctrl-C, end it with everything it started."""
    handle = launcher.start(spec, run)
    try:
        yield handle
    finally:
        handle.stop()
