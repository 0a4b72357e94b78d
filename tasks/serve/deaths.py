"""A client whose server died is told of the server: how it ended, and the last lines of its log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tasks.errors import JobError, ServiceError
from tasks.processes.launcher import Handle
from tasks.serve.log_causes import service_error

_CAUSE_LINES = 400
_WAIT_S = 2.0
_POLL_S = 0.05


@contextmanager
def telling_deaths(handles: Callable[[], Sequence[Handle]], wait_s: float = _WAIT_S) -> Iterator[None]:
    """Turn an error of the work inside into that of the server that ended, where one did.

    Args:
        handles: The servers that the work needs, asked for when it has failed.
        wait_s: Longest wait for the end of a server that closed its connections already.

    Raises:
        ServiceError: A server ended; with the end of its log.
    """
    try:
        yield
    except (ServiceError, JobError) as error:
        dead = _first_dead(handles(), wait_s)
        if dead is None:
            raise
        handle, status = dead
        how = f"exit status {status}" if status >= 0 else f"signal {-status}"
        raise service_error(
            handle.spec.name,
            f"ended with {how} while it was needed",
            str(handle.log),
            handle.tail(_CAUSE_LINES),
        ) from error


def _first_dead(handles: Sequence[Handle], wait_s: float) -> tuple[Handle, int] | None:
    deadline = time.monotonic() + wait_s
    while handles:
        for handle in handles:
            if (status := handle.poll()) is not None:
                return handle, status
        if time.monotonic() >= deadline:
            return None
        time.sleep(_POLL_S)
    return None
