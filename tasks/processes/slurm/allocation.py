"""One job: submitted, waited for, heard, watched, and given back."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from profiles.schema import Profile
from tasks.errors import AllocationEnded, NodeLost, RetrainError, ServiceError, UsageError
from tasks.processes.guard import start_guard
from tasks.processes.slurm import commands
from tasks.processes.slurm.commands import CommandFailed, Component
from tasks.processes.slurm.ended import fault_of, lost
from tasks.processes.slurm.jobs import read_jobs, reap_job, write_job
from tasks.processes.slurm.keeper import Keeper, NodePlace
from tasks.processes.slurm.phases import Phase
from tasks.processes.slurm.queue import Tell, wait_for_nodes
from tasks.processes.slurm.script import ON_NODE, batch_script, prepared, step_words
from tasks.run_folder import RunFolder

_BEAT_S = 2.0
_ASK_S = 10.0
"""Time between two questions to the controller, which serves the whole cluster."""
_FIRST_WORD_S = 60.0
_SETTLE_S = 5.0
log = logging.getLogger("retrain_dspark")


class Allocation:
    """The nodes of one phase. `open` waits for them; `close` gives them back.

    Args:
        python: Interpreter of the nodes.
        train_nodes: Nodes that training must have.
    """

    def __init__(
        self,
        profile: Profile,
        run: RunFolder,
        phase: Phase,
        python: str,
        tell: Tell,
        train_nodes: Sequence[str] = (),
    ):
        self.phase = phase
        self.job = ""
        self.places: dict[str, NodePlace] = {}
        self._profile, self._run, self._python, self._tell = profile, run, python, tell
        self._train_nodes = train_nodes
        self._name = f"dspark-{run.run_id}-{phase.name}-{uuid.uuid4().hex[:6]}"
        self._heartbeat = run.services / f"{self._name}.beat"
        self._nodes: dict[int, tuple[str, ...]] = {}
        self._jobs: dict[int, str] = {}
        self._keepers: dict[int, Keeper] = {}
        self._fault: RetrainError | None = None
        self._closed = threading.Event()
        self._beats = 0
        self._lock = threading.Lock()

    def open(self) -> None:
        """Submit the job and wait until each of its nodes has said its address.

        Raises:
            UsageError: Slurm refuses what the profile asks for.
            AllocationEnded: There were no nodes in time, or they were taken back.
            ServiceError: Slurm does not answer, or nothing can be started on a node.
        """
        start_guard(self._run.services)
        write_job(self._run.services, self._name)
        self._beat()
        threading.Thread(target=self._keep_beating, name=f"beat {self._name}", daemon=True).start()
        try:
            self.job = self._submit()
            log.info("slurm: job %s (%s) is submitted for phase %s", self.job, self._name, self.phase.name)
            found = wait_for_nodes(self.job, self._profile.launch.slurm.queue_timeout_s, self._tell)
            self._meet(found)
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._watch, name=f"watch {self._name}", daemon=True).start()

    def _submit(self) -> str:
        script = batch_script(
            self._profile,
            self.phase,
            job_name=self._name,
            python=self._python,
            heartbeat=self._heartbeat,
            log=self._run.logs / f"slurm-{self.phase.name}.log",
            train_nodes=self._train_nodes,
        )
        try:
            return commands.submit(script)
        except CommandFailed as error:
            raise UsageError(
                f"Slurm refuses the job: {error}",
                where="launch.slurm",
                hint="correct account, partition, QOS, reservation, constraint or exclude, or ask for less",
            ) from None

    def _meet(self, found: Sequence[Component]) -> None:
        """Learn which nodes there are, and their addresses from themselves."""
        for component in found:
            self._nodes[component.offset] = commands.host_names(component.nodes)
            self._jobs[component.offset] = component.job
        names = [name for group in self._nodes.values() for name in group]
        addresses = {name: row[2] for name, row in commands.node_states(names).items()}
        for offset, group in self._nodes.items():
            towards = next((addresses[name] for name in names if name not in group), addresses[names[0]])
            words = (
                self._python,
                "-I",
                "-S",
                str(ON_NODE / "keep.py"),
                self._profile.launch.interface,
                towards,
            )
            step = self.step(offset, group, "keeper")
            silence = self._profile.launch.slurm.node_silence_s
            self._keepers[offset] = Keeper((*step, *words), group, silence)
        for keeper in self._keepers.values():
            self.places |= keeper.places(_FIRST_WORD_S)
        log.info(
            "slurm: job %s runs on %s",
            self.job,
            ", ".join(f"{place.node} ({place.address} {place.interface})" for place in self.places.values()),
        )

    def nodes_of(self, role: str) -> tuple[str, ...]:
        """Names of the nodes that play `role`, the first one first."""
        return self._nodes.get(self.phase.group_of(role), ())

    def job_of(self, role: str) -> str:
        """Id of the component that plays `role`; steps are numbered below it, not below the leader's."""
        return self._jobs[self.phase.group_of(role)]

    def plays(self, role: str) -> bool:
        """Whether it still has nodes for `role`."""
        return self.phase.group_of(role) in self._keepers

    def step(self, offset: int, nodes: Sequence[str], name: str, container: bool = False) -> tuple[str, ...]:
        """`srun` words of a step on some nodes of a component."""
        launch = self._profile.launch
        return step_words(
            launch.slurm,
            job=self.job,
            group=offset if len(self.phase.groups) > 1 else None,
            nodes=nodes,
            name=name,
            gpus_per_node=self.phase.groups[offset].gpus_per_node if container else None,
            container=container,
            mounts=(self._run.path.parent, *((Path(launch.scratch),) if launch.scratch else ())),
        )

    def ask(self, role: str, node: int, *words: str) -> int:
        """The answer of `on_node/ask.py` on a node.

        Raises:
            ServiceError: It could not be asked.
        """
        name = self.nodes_of(role)[node]
        offset = self.phase.group_of(role)
        command = (self._python, "-I", "-S", str(ON_NODE / "ask.py"), *words)
        try:
            return int(commands.run_command((*self.step(offset, (name,), "ask"), *command)).split()[-1])
        except (CommandFailed, ValueError, IndexError) as error:
            self.require_alive()
            raise ServiceError(f"node {name} could not be asked: {error}", where=name) from None

    def prepared(self, words: Sequence[str]) -> tuple[str, ...]:
        return prepared(self._profile.launch.slurm, words)

    # What may happen to it.

    def require_alive(self) -> None:
        """Raise what ended it, if something did.

        Raises:
            NodeLost: A node failed.
            AllocationEnded: Slurm took the nodes back.
        """
        for keeper in list(self._keepers.values()):
            self._fault = self._fault or keeper.fault()
        if self._fault is not None:
            raise self._fault

    def has_lost(self, node: str) -> bool:
        """Whether nothing more can be told to a node."""
        known = [error for keeper in list(self._keepers.values()) if (error := keeper.fault())]
        return any(isinstance(e, NodeLost) and node in e.where.split(", ") for e in (*known, self._fault))

    def settle(self) -> None:
        """Ask Slurm at once why a process ended, and raise if it was not the process itself.

        Raises:
            NodeLost, AllocationEnded: As `require_alive`.
        """
        deadline = time.monotonic() + _SETTLE_S
        while not self._closed.is_set():
            self.require_alive()
            ending = self._look()
            self.require_alive()
            if not ending or time.monotonic() > deadline:
                return
            time.sleep(0.2)

    def _look(self) -> bool:
        """Ask Slurm once; true if the job is on its way to another state."""
        try:
            found = [one for one in commands.components(self.job) if one.offset in self._keepers]
        except CommandFailed as error:
            log.warning("slurm: %s", error)
            return False
        ending = any(one.state in commands.ENDING for one in found)
        if self._closed.is_set() or (ending and not any(one.reason == "NodeDown" for one in found)):
            return True
        nodes = {offset: self._nodes[offset] for offset in self._keepers}
        fault = fault_of(self.job, found, nodes)
        self._fault = self._fault or self._with_node(fault)
        return False

    def _with_node(self, fault: RetrainError | None) -> RetrainError | None:
        """Of several nodes of a component, name those that Slurm says are down."""
        if not isinstance(fault, ServiceError) or isinstance(fault, AllocationEnded):
            return fault
        names = [name for offset in self._keepers for name in self._nodes[offset]]
        with contextlib.suppress(CommandFailed):
            rows = commands.node_states(names)
            down = [name for name, row in rows.items() if "DOWN" in row[0] or "FAIL" in row[0]]
            if down:
                name = ", ".join(down)
                return lost(name, f"Slurm says {rows[down[0]][0]} {rows[down[0]][1]}".rstrip())
        return fault

    def _watch(self) -> None:
        while not self._closed.wait(_ASK_S):
            if self._fault is None:
                self._look()

    def _keep_beating(self) -> None:
        while not self._closed.wait(_BEAT_S):
            self._beat()

    def _beat(self) -> None:
        self._beats += 1
        with contextlib.suppress(OSError):  # a full disk must not end the run here
            self._heartbeat.write_text(f"{self._beats} {time.time():.0f}", encoding="ascii")

    # Giving back.

    def release(self, role: str) -> None:
        """Give back the nodes of one role; the leader's go with the whole job only."""
        offset = self.phase.group_of(role)
        if offset <= 0 or offset not in self._keepers:
            return
        self._keepers.pop(offset).stop()
        with contextlib.suppress(CommandFailed):
            commands.cancel(f"{self.job}+{offset}")
        log.info("slurm: job %s gave back %s", self.job, ", ".join(self._nodes[offset]))

    def close(self) -> None:
        """Cancel the job; it stays registered until Slurm has ended it. May be called again."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
        for keeper in self._keepers.values():
            keeper.stop()
        self._keepers.clear()
        for path, entry in read_jobs(self._run.services):
            if entry.job_name == self._name:
                log.info("slurm: %s", reap_job(path, entry))
        self._heartbeat.unlink(missing_ok=True)
