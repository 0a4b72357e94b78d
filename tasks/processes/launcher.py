"""Start processes of a run: own session, own log file, an entry on disk, ended with all they started."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from profiles.schema import Profile
from tasks.errors import ServiceError
from tasks.processes import registry
from tasks.processes.ending import MARKER, end, wait_ports_free
from tasks.processes.environment import child_environment
from tasks.processes.forker import Forker
from tasks.processes.guard import start_guard
from tasks.processes.identity import boot_id, host_name, process_row, start_time
from tasks.processes.nodes import Node, NodeRole, address_towards
from tasks.processes.places import LocalPlace, Place
from tasks.processes.ports import listening_pids
from tasks.run_folder import RunFolder

_TIE = Path(__file__).with_name("tie.py")


@dataclass(frozen=True)
class ProcessSpec:
    """What to start.

    Args:
        name: Unique in a run; names log and registry entry.
        stage: Stage word that the process works for.
        role: `serve` or `train`: on which kind of node it belongs.
        argv: Command line; the first word may be found on PATH.
        env: Added to the inherited environment, which loses orchestration variables and secrets.
        secret_env: Added too, and never written anywhere.
        ports: Ports that it listens on; ending it waits until they are free.
        grace_s: Time that it gets to end itself when it is asked to, seconds.
        node: Which node of the role, from 0.
    """

    name: str
    stage: str
    role: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    secret_env: Mapping[str, str] = field(default_factory=dict, repr=False)
    ports: tuple[int, ...] = ()
    grace_s: float = 10.0
    node: int = 0


class Handle(Protocol):
    """A started process."""

    spec: ProcessSpec
    pid: int

    @property
    def log(self) -> Path:
        """File with what it prints."""

    def poll(self) -> int | None:
        """Exit status, negative for a signal; None while it runs.

        Raises:
            NodeLost: Its node failed.
            AllocationEnded: Its nodes were taken back.
        """

    def listens_on(self, port: int) -> bool:
        """Whether it, or what it started, listens on this port of its node."""

    def stop(self, grace_s: float | None = None) -> None:
        """End it and everything it started, after its own grace or this one; may be called again."""

    def tail(self, lines: int = 25) -> list[str]:
        """Last lines of its log."""


def _quiet(seconds: float, note: str) -> None:
    """Tells nobody."""


class Launcher(Protocol):
    """Where processes run. A launcher of a cluster asks for nodes when the first process needs them."""

    def nodes(self, profile: Profile) -> tuple[Node, ...]:
        """Every node of the plan."""

    def place(self, profile: Profile, run: RunFolder, stage: str, role: str) -> Place:
        """Where processes of this stage and role will be; waits for the nodes if there are none yet."""

    def start(self, spec: ProcessSpec, run: RunFolder) -> Handle:
        """Start a process; raises ServiceError if it cannot be started."""

    def close(self) -> None:
        """Give back what the launcher holds; may be called again, and is of no use afterwards."""


def launcher_of(profile: Profile, run: RunFolder, tell: Callable[[float, str], None] = _quiet) -> Launcher:
    """The launcher of a run, by `launch.kind`; close it at the run's end.

    Args:
        tell: Called with seconds and a note while nodes are waited for.
    """
    if profile.launch.kind == "slurm":
        from tasks.processes.slurm.launcher import SlurmLauncher

        return SlurmLauncher(profile, run, tell)
    return LocalLauncher()


def launcher_for(profile: Profile) -> Launcher:
    """The launcher of work without a run: on this machine, whatever the profile asks for."""
    return LocalLauncher()


class LocalHandle:
    """A process on this machine."""

    def __init__(self, spec: ProcessSpec, log: Path, process: subprocess.Popen[bytes], services: Path):
        self.spec = spec
        self.pid = process.pid
        self.log = log
        self._process = process
        self._start = start_time(process.pid)
        self._marker = ""
        self._services = services
        self._lock = threading.Lock()
        self._stopped = False

    def register(self, marker: str) -> None:
        """Write the entry by which this process is found if its owner dies."""
        self._marker = marker
        registry.write_entry(
            self._services,
            registry.Entry(
                name=self.spec.name,
                host=host_name(),
                boot=boot_id(),
                pid=self.pid,
                pgid=self.pid,
                start_time=self._start,
                argv=registry.without_secrets(self.spec.argv),
                ports=self.spec.ports,
                owner_pid=os.getpid(),
                owner_start_time=start_time(os.getpid()),
                marker=marker,
            ),
        )

    def poll(self) -> int | None:
        return self._process.poll()

    def listens_on(self, port: int) -> bool:
        rows = (process_row(pid) for pid in listening_pids(port))
        return any(row is not None and self.pid in (row.pid, row.group, row.session) for row in rows)

    def stop(self, grace_s: float | None = None) -> None:
        with self._lock:
            if self._stopped:
                return
            grace_s = self.spec.grace_s if grace_s is None else grace_s
            end(self.pid, self._start, self._marker, grace_s, reaped=self._process.poll)
            wait_ports_free(self.spec.ports)
            (self._services / f"{self.spec.name}.json").unlink(missing_ok=True)
            self._stopped = True

    def tail(self, lines: int = 25) -> list[str]:
        try:
            with open(self.log, encoding="utf-8", errors="replace") as stream:
                return [line.rstrip() for line in deque(stream, maxlen=lines)]
        except OSError:
            return []


_forker = Forker()


def fork_tied(
    words: Sequence[str], environment: Mapping[str, str], stdout: int | IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own that is told to end when this interpreter ends."""
    return _forker.call(lambda: _tied(words, environment, stdout))


def _tied(
    words: Sequence[str], environment: Mapping[str, str], stdout: int | IO[bytes]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(_TIE), str(os.getpid()), *words],
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


class LocalLauncher:
    """Starts processes on this machine.

    Args:
        role: Roles that this machine plays.
    """

    def __init__(self, role: NodeRole = "serve+train"):
        self._role = role

    def nodes(self, profile: Profile) -> tuple[Node, ...]:
        spans = profile.hardware.roles.span_hosts
        address = address_towards(profile.store.host) if spans else profile.store.host
        return (Node(host_name(), self._role, address),)

    def place(self, profile: Profile, run: RunFolder, stage: str, role: str) -> Place:
        return LocalPlace(profile)

    def close(self) -> None:
        """Nothing is held: each process is ended by who started it."""

    def start(self, spec: ProcessSpec, run: RunFolder) -> LocalHandle:
        start_guard(run.services)
        marker = f"{run.run_id}/{spec.name}/{uuid.uuid4().hex[:12]}"
        log = run.logs / f"{spec.name}.log"
        run.logs.mkdir(parents=True, exist_ok=True, mode=0o700)

        def fork_and_register() -> LocalHandle:
            """In the forker's thread: a Ctrl-C cannot leave a process that nobody knows."""
            handle = LocalHandle(spec, log, self._fork(spec, log, marker), run.services)
            try:
                handle.register(marker)
            except BaseException:
                handle.stop(grace_s=1.0)
                raise
            return handle

        return _forker.call(fork_and_register)

    def _fork(self, spec: ProcessSpec, log: Path, marker: str) -> subprocess.Popen[bytes]:
        env = child_environment(os.environ, {**spec.env, MARKER: marker}, spec.secret_env)
        try:
            with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as output:
                return _tied(spec.argv, env, output)
        except OSError as error:
            raise ServiceError(
                f"{spec.name} could not be started: {error}", where=spec.argv[0], hint="see the command line"
            ) from error
