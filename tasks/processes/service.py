"""Long-lived processes for the length of a `with` block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tasks.processes.group import start_together
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


@contextmanager
def running_together(launcher: Launcher, specs: Sequence[ProcessSpec], run: RunFolder) -> Iterator[Handle]:
    """Start all of `specs` or none, as one process; on any way out end them all."""
    handle = start_together(launcher, specs, run)
    try:
        yield handle
    finally:
        handle.stop()
