"""A process of the run that is a step of a Slurm job."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tasks.errors import RetrainError, ServiceError
from tasks.processes.launcher import LocalHandle, ProcessSpec
from tasks.processes.slurm import commands
from tasks.processes.slurm.allocation import Allocation

_POLL_S = 0.05
_KILL_WAIT_S = 10.0
_LAST_SIGNAL = 64
_EXIT_SIGNAL = 128


class SlurmHandle:
    """A step: started through a local `srun`, which ends with it, ended through `scancel`.

    Args:
        srun: The `srun` on this machine; its output is the step's.
        order: File with the step's order; a step that began has removed it.
        started: File in which the step says which one it is.
        node: Name of its node.
        stopped: Called once, when it has been ended.
    """

    def __init__(
        self,
        spec: ProcessSpec,
        allocation: Allocation,
        srun: LocalHandle,
        order: Path,
        started: Path,
        node: str,
        stopped: Callable[[SlurmHandle], None],
    ):
        self.spec = spec
        self.pid = srun.pid
        self.log = srun.log
        self.node = node
        self._allocation = allocation
        self._srun = srun
        self._order = order
        self._started = started
        self._step = ""
        self._node_pid = 0
        self._stopping = False
        self._told_stopped = stopped
        self._lock = threading.Lock()

    def wait_started(self, timeout_s: float) -> None:
        """Wait until the node has begun it.

        Raises:
            ServiceError: It did not begin in time, or srun ended first.
            NodeLost, AllocationEnded: Its node is gone.
        """
        deadline = time.monotonic() + timeout_s
        while not self._has_begun():
            status = self._srun.poll()
            if status is not None and not self._has_begun():
                self._allocation.settle()
                raise self._not_started(f"srun ended with status {status}")
            if time.monotonic() > deadline:
                self._allocation.require_alive()
                raise self._not_started(f"nothing was heard of it within {timeout_s:.0f} s")
            time.sleep(_POLL_S)

    def _has_begun(self) -> bool:
        if not self._started.exists():
            return False
        row = json.loads(self._started.read_text(encoding="utf-8"))
        self._step = f"{self._allocation.job_of(self.spec.role)}.{row['step']}"
        self._node_pid = row["pid"]
        self._started.unlink(missing_ok=True)
        return True

    def _not_started(self, why: str) -> RetrainError:
        return ServiceError(
            f"{self.spec.name} could not be started on {self.node}: {why}",
            where=f"{self.node}; log: {self.log}",
            hint="do the nodes see the run folder, this project and launch.slurm.python?",
            log_tail=self.tail(),
        )

    def poll(self) -> int | None:
        status = self._srun.poll()
        if self._stopping:
            return _as_signal(status)
        if status is None:
            self._allocation.require_alive()
        elif status != 0 or self._lost_its_node():
            self._allocation.settle()  # srun's status does not say whether node, job or process ended
        return _as_signal(status)

    @property
    def has_ended(self) -> bool:
        """Nobody has to ask Slurm for this, and nothing is raised."""
        return self._srun.poll() is not None

    def _lost_its_node(self) -> bool:
        return any("Node failure" in line or "srun: error" in line for line in self.tail(5))

    def listens_on(self, port: int) -> bool:
        words = ("listens", str(self._node_pid), str(port))
        return bool(self._allocation.ask(self.spec.role, self.spec.node, *words))

    def stop(self, grace_s: float | None = None) -> None:
        with self._lock:
            self._stopping = True
            grace_s = self.spec.grace_s if grace_s is None else grace_s
            if self._srun.poll() is None and self._step and not self._allocation.has_lost(self.node):
                self._tell("TERM")
                if not self._ends_within(grace_s):
                    self._tell("KILL")
                    self._ends_within(_KILL_WAIT_S)
            self._srun.stop(grace_s=1.0)
            for path in (self._order, self._started):
                path.unlink(missing_ok=True)
        self._told_stopped(self)

    def _tell(self, signal: str) -> None:
        with contextlib.suppress(commands.CommandFailed):  # the job's end ends it anyway
            commands.cancel(self._step, signal)

    def _ends_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self._srun.poll() is None:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def tail(self, lines: int = 25) -> list[str]:
        return self._srun.tail(lines)


def _as_signal(status: int | None) -> int | None:
    """srun says 128 + N of a process that signal N ended."""
    if status is not None and _EXIT_SIGNAL < status <= _EXIT_SIGNAL + _LAST_SIGNAL:
        return _EXIT_SIGNAL - status
    return status
