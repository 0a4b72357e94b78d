"""Starts processes of a run on nodes that Slurm gives to it."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from profiles.schema import Profile
from tasks.errors import PortInUse, ServiceError
from tasks.processes.environment import child_environment
from tasks.processes.launcher import LocalLauncher, ProcessSpec
from tasks.processes.nodes import Node, NodeRole
from tasks.processes.slurm.allocation import Allocation
from tasks.processes.slurm.commands import cleaned_environment
from tasks.processes.slurm.handle import SlurmHandle
from tasks.processes.slurm.phases import phase_for
from tasks.processes.slurm.queue import Tell
from tasks.processes.slurm.script import ON_NODE
from tasks.run_folder import RunFolder

_START_S = 60.0
_INHERITED = (
    "HOME",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "OMP_NUM_THREADS",
    "PATH",
    "PYTHONPATH",
    "TZ",
    "USER",
    "XDG_CACHE_HOME",
)
"""What the nodes get of this process's environment: where things are, and no more."""
_NEEDED = ("sbatch", "srun", "scancel", "squeue", "scontrol")


@dataclass(frozen=True)
class SlurmPlace:
    """The first node of a role in an allocation."""

    profile: Profile
    nodes: tuple[str, ...]
    allocation: Allocation
    role: str

    def port(self, host: str, wanted: int = 0, field: str = "") -> int:
        first, last = self.profile.launch.ports or (0, 0)
        port = self.allocation.ask(self.role, 0, "port", host, str(wanted), str(first), str(last))
        if port:
            return port
        raise PortInUse(
            f"port {wanted} on {host} is in use on {self.nodes[0]}"
            if wanted
            else f"no port of launch.ports is free on {self.nodes[0]} ({host})",
            where=field or "launch.ports",
            hint="name another port, or 0 to take a free one" if wanted else "name a wider range",
        )


class SlurmLauncher:
    """One allocation for the run, or one for each phase, asked for when a process needs it.

    Args:
        tell: Called with seconds and a note while a job waits.
    """

    def __init__(self, profile: Profile, run: RunFolder, tell: Tell):
        self._profile, self._run, self._tell = profile, run, tell
        self._python = profile.launch.slurm.python or sys.executable
        self._local = LocalLauncher()
        self._open: list[Allocation] = []
        self._handles: list[tuple[Allocation, SlurmHandle]] = []
        self._lock = threading.RLock()

    def nodes(self, profile: Profile) -> tuple[Node, ...]:
        """Nodes of the phase that captures, each with its address and the step that reaches it."""
        found: list[Node] = []
        for role in ("serve", "train"):
            if self._needs(role):
                allocation = self._allocation("serve", role)
                found += [self._node(allocation, role, name) for name in allocation.nodes_of(role)]
        return tuple({node.name: node for node in found}.values())

    def _needs(self, role: str) -> bool:
        return role == "train" or self._profile.serve.kind == "launch"

    def _node(self, allocation: Allocation, role: str, name: str) -> Node:
        offset = allocation.phase.group_of(role)
        roles: NodeRole = "serve+train" if self._profile.hardware.roles.colocated else _only(role)
        # Facts are asked for over standard input, which other steps do not have.
        words = [word for word in allocation.step(offset, (name,), "facts") if word != "--input=none"]
        names = "PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "HOME"
        shown = [f"{key}={os.environ[key]}" for key in names if key in os.environ]
        reach = (*_outside(), *words, *allocation.prepared(("/usr/bin/env", *shown)))
        return Node(name, roles, allocation.places[name].address, reach, self._python)

    def place(self, profile: Profile, run: RunFolder, stage: str, role: str) -> SlurmPlace:
        allocation = self._allocation(stage, role)
        address = allocation.places[allocation.nodes_of(role)[0]].address
        # The interface is known on each node; the flow's own need not have one of that name.
        store = profile.store.model_copy(update={"host": address, "interface": ""})
        serve = profile.serve.model_copy(update={"host": address})
        placed = profile.model_copy(update={"store": store, "serve": serve})
        return SlurmPlace(placed, allocation.nodes_of(role), allocation, role)

    def start(self, spec: ProcessSpec, run: RunFolder) -> SlurmHandle:
        """Start a process as a step, and wait until its node has begun it.

        Raises:
            ServiceError: It could not be started.
            AllocationEnded: There are no nodes.
        """
        allocation = self._allocation(spec.stage, spec.role)
        allocation.require_alive()
        names = allocation.nodes_of(spec.role)
        if spec.node >= len(names):
            raise ServiceError(
                f"{spec.name} wants node {spec.node} of role {spec.role}, which has {len(names)}",
                where="hardware.roles",
            )
        node = names[spec.node]
        order, started = self._write_order(spec, allocation)
        bare = (self._python, "-I", "-S", str(ON_NODE / "start.py"), str(order))
        offset = allocation.phase.group_of(spec.role)
        step = allocation.step(offset, (node,), spec.name, container=True)
        words = (*_outside(), *step, *allocation.prepared(bare))
        local = replace(spec, argv=words, env={}, secret_env={}, ports=())
        srun = self._local.start(local, run)
        handle = SlurmHandle(spec, allocation, srun, order, started, node, self._stopped)
        try:
            handle.wait_started(_START_S)
        except BaseException:
            handle.stop(grace_s=0.0)
            raise
        with self._lock:
            self._handles.append((allocation, handle))
        return handle

    def _write_order(self, spec: ProcessSpec, allocation: Allocation) -> tuple[Path, Path]:
        """The file from which the node learns what to run; only its owner can read it."""
        orders = self._run.services / "orders"
        orders.mkdir(parents=True, exist_ok=True, mode=0o700)
        stem = f"{spec.name}-{uuid.uuid4().hex[:8]}"
        order, started = orders / f"{stem}.json", orders / f"{stem}.started"
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        row: dict[str, Any] = {
            "argv": self._on_node(spec.argv),
            "inherited": child_environment(inherited, {}, {}),
            "env": dict(spec.env),
            "secret_env": dict(spec.secret_env),
            "started": str(started),
            "cwd": os.getcwd(),
            "folders": self._folders_on_nodes(),
            "nodes": {
                name: {"address": place.address, "interface": place.interface}
                for name, place in allocation.places.items()
            },
        }
        with open(
            os.open(order, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
        ) as stream:
            json.dump(row, stream)
        return order, started

    def _folders_on_nodes(self) -> list[str]:
        """Folders of the run that are links to the nodes' own disks; they exist there only."""
        links = [path for path in self._run.path.glob("*/*") if path.is_symlink()]
        return [str(path.readlink()) for path in links]

    def _on_node(self, argv: tuple[str, ...]) -> list[str]:
        """The command line with the programs of the nodes' own environment."""
        here, there = Path(sys.executable).parent, Path(self._python).parent
        first = Path(argv[0])
        if argv[0] == sys.executable:
            return [self._python, *argv[1:]]
        return [str(there / first.name) if first.parent == here else argv[0], *argv[1:]]

    def _allocation(self, stage: str, role: str) -> Allocation:
        """The allocation that has this process's nodes; opened now if there is none."""
        phase = phase_for(self._profile, stage, role)
        with self._lock:
            self._forget_ended()
            fitting = [one for one in self._open if one.phase.name == phase.name and one.plays(role)]
            if not fitting and phase.name == "train":
                fitting = self._train_alone()
            for one in [one for one in self._open if one not in fitting and not self._works(one)]:
                self._open.remove(one)
                one.close()
            if fitting:
                return fitting[0]
            _require_commands()
            opened = Allocation(
                self._profile, self._run, phase, self._python, self._tell, self._nodes_with_log()
            )
            opened.open()
            self._open.append(opened)
            self._remember(opened)
            return opened

    def _train_alone(self) -> list[Allocation]:
        """The capture's allocation if it is open: training stays on its node, the serving nodes go back."""
        found = [one for one in self._open if one.plays("train")]
        for one in found:
            if not self._works(one, "serve"):
                one.release("serve")
        return found

    def _forget_ended(self) -> None:
        self._handles = [(held, one) for held, one in self._handles if not one.has_ended]

    def _stopped(self, handle: SlurmHandle) -> None:
        """Give the serving nodes back once the target is ended and the trainer beside it goes on alone."""
        with self._lock:
            allocation = next((held for held, one in self._handles if one is handle), None)
            self._forget_ended()
            if allocation is None or allocation.phase.name != "capture" or self._works(allocation, "serve"):
                return
            if any(held is allocation and one.spec.stage == "train" for held, one in self._handles):
                allocation.release("serve")

    def _works(self, allocation: Allocation, role: str | None = None) -> bool:
        return any(held is allocation and role in (None, one.spec.role) for held, one in self._handles)

    def _nodes_with_log(self) -> tuple[str, ...]:
        """Training nodes of an earlier job of this run, whose disk holds its hidden-state log."""
        if not self._profile.launch.scratch:
            return ()
        return tuple(self._run.facts().get("train_nodes", ()))

    def _remember(self, allocation: Allocation) -> None:
        if self._profile.launch.scratch and allocation.plays("train") and self._run.path.is_dir():
            self._run.remember(train_nodes=list(allocation.nodes_of("train")))

    def close(self) -> None:
        with self._lock:
            opened, self._open = self._open, []
        for allocation in opened:
            allocation.close()
        shutil.rmtree(self._run.services / "orders", ignore_errors=True)


def _only(role: str) -> NodeRole:
    return "serve" if role == "serve" else "train"


def _outside() -> tuple[str, ...]:
    """Words before a command that keep it out of the allocation that this process itself may be in."""
    inside = sorted(set(os.environ) - set(cleaned_environment(os.environ)))
    return ("/usr/bin/env", *(f"--unset={name}" for name in inside)) if inside else ()


def _require_commands() -> None:
    missing = [name for name in _NEEDED if shutil.which(name) is None]
    if missing:
        raise ServiceError(
            f"Slurm's commands are not here: {', '.join(missing)}",
            where="launch.kind",
            hint="run on a machine that submits to the cluster, or set launch.kind to local",
        )
