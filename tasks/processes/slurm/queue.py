"""Waiting for a job's nodes: shown with Slurm's reason and expected start, and bounded."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from tasks.errors import AllocationEnded, ServiceError
from tasks.processes.slurm.commands import CommandFailed, Component, components

_FIRST_POLL_S = 0.3
_POLL_S = 5.0
_MISSED = 5
"""Questions in a row that a busy controller may leave without an answer."""
_NEVER = (
    "AccountNotAllowed",
    "BadConstraints",
    "InvalidAccount",
    "InvalidQOS",
    "JobLaunchFailure",
    "PartitionNodeLimit",
    "PartitionTimeLimit",
    "QOSNotAllowed",
    "ReservationDeleted",
)
"""Reasons that no waiting mends."""
log = logging.getLogger("retrain_dspark")

Tell = Callable[[float, str], None]
"""Called with the seconds waited and a note."""


def described(job: str, found: Sequence[Component]) -> str:
    """For people: `job 12 waits (Resources), expected start 2026-12-01T04:00:00`."""
    waiting = [component for component in found if component.waits]
    if not waiting:
        return f"job {job} starts"
    reasons = ", ".join(dict.fromkeys(component.reason or "no reason given" for component in waiting))
    starts = [component.start for component in waiting if component.start]
    expected = f", expected start {max(starts)}" if starts else ", no expected start yet"
    return f"job {job} waits ({reasons}){expected}"


def wait_for_nodes(job: str, timeout_s: float, tell: Tell) -> list[Component]:
    """Wait until every component runs.

    Raises:
        AllocationEnded: The job ended, cannot ever start, or waited for `timeout_s`; it is not cancelled.
        ServiceError: Slurm does not answer.
    """
    started = time.monotonic()
    said, pause, missed = "", _FIRST_POLL_S, 0
    while True:
        waited = time.monotonic() - started
        try:
            found = components(job)
            missed = 0
        except CommandFailed as error:
            missed += 1
            if missed > _MISSED:
                raise ServiceError(f"Slurm does not answer: {error}", where="scontrol") from None
            found = None
        if found is not None:
            if found and all(component.runs for component in found):
                return found
            _require_hope(job, found)
            note = described(job, found)
            tell(waited, note)
            if note != said:
                said = note
                log.info("%s", note)
        if waited > timeout_s:
            raise AllocationEnded(
                f"{said or f'job {job} waits'}: no nodes after {waited:.0f} s",
                where="launch.slurm.queue_timeout_s",
                hint="raise the limit, ask for less (time_limit_minutes, nodes), or name another partition",
            )
        time.sleep(pause)
        pause = min(pause * 1.5, _POLL_S)


def _require_hope(job: str, found: Sequence[Component]) -> None:
    if not found:
        raise AllocationEnded(f"Slurm does not know job {job} any more", where="launch.slurm")
    for component in found:
        if component.is_over:
            raise AllocationEnded(
                f"job {job} ended before it began: {component.state} {component.reason}".rstrip(),
                where="launch.slurm",
                hint=f"scontrol show job {job}",
            )
        if component.waits and component.reason.startswith(_NEVER):
            raise AllocationEnded(
                f"job {job} can never start: {component.reason}",
                where="launch.slurm",
                hint="correct account, partition, QOS, reservation, constraint or time limit in the profile",
            )
