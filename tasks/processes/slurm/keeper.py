"""Hears every node of an allocation: its address first, then that it lives."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tasks.errors import NodeLost, RetrainError, ServiceError
from tasks.processes.launcher import fork_tied
from tasks.processes.slurm.commands import cleaned_environment
from tasks.processes.slurm.ended import lost

_NODE_FAILURE = re.compile(r"Node failure on ([\w.\[\],-]+)")
_POLL_S = 0.02


@dataclass(frozen=True)
class NodePlace:
    """How other nodes reach a node.

    Args:
        address: On the fabric.
        interface: That has it; empty if no interface of the node says so.
    """

    node: str
    address: str
    interface: str


class Keeper:
    """A step with one small program on each node; `stop` ends it.

    Args:
        words: The `srun` command of one component.
        nodes: Names of its nodes.
        silence_s: Longest time without a word of a node.
    """

    def __init__(self, words: Sequence[str], nodes: Sequence[str], silence_s: float):
        self._silence_s = silence_s
        self._places: dict[str, NodePlace] = {}
        self._faults: list[RetrainError] = []
        self._other: list[str] = []
        self._heard = dict.fromkeys(nodes, time.monotonic())
        self._stopping = False
        self._process: subprocess.Popen[bytes] = fork_tied(
            words, cleaned_environment(os.environ), stdout=subprocess.PIPE
        )
        self._thread = threading.Thread(target=self._read, name="keeper", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None, "asked for as a pipe"
        for raw in self._process.stdout:
            line = raw.decode(errors="replace").strip()
            if line in self._heard:
                self._heard[line] = time.monotonic()
            else:
                self._take(line)

    def _take(self, line: str) -> None:
        try:
            said: dict[str, Any] = json.loads(line)
            node = said["node"]
        except (ValueError, KeyError, TypeError):
            if failure := _NODE_FAILURE.search(line):
                self._faults.append(lost(failure.group(1), "Slurm says that it failed"))
            self._other.append(line)
            return
        if "fault" in said:
            self._faults.append(
                ServiceError(
                    f"node {node} has no address on the fabric: {said['fault']}",
                    where=f"launch.interface on {node}",
                    hint="name an interface that every node has (`ip -brief address` there)",
                )
            )
        else:
            self._places[node] = NodePlace(node, said["address"], said["interface"])
            self._heard[node] = time.monotonic()

    def places(self, timeout_s: float) -> dict[str, NodePlace]:
        """Wait for the first word of every node.

        Raises:
            ServiceError: A node has no address, or the step could not be started.
            NodeLost: A node said nothing for `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while missing := [node for node in self._heard if node not in self._places]:
            if self._faults:
                raise self._faults[0]
            if self._process.poll() is not None:
                raise ServiceError(
                    f"nothing can be started on {', '.join(missing)}",
                    where=", ".join(missing),
                    hint="see what srun says; is launch.slurm.python there?",
                    log_tail=self._other[-10:],
                )
            if time.monotonic() > deadline:
                raise lost(missing[0], f"it said nothing within {timeout_s:.0f} s of the job's start")
            time.sleep(_POLL_S)
        return dict(self._places)

    def fault(self) -> RetrainError | None:
        """What is wrong with a node now; None while each is heard."""
        if self._stopping:
            return None
        if self._faults:
            return self._faults[0]
        now = time.monotonic()
        for node, heard in self._heard.items():
            if now - heard > self._silence_s:
                return lost(node, f"nothing was heard of it for {now - heard:.0f} s")
        return None

    def lost_nodes(self) -> list[str]:
        """Nodes of which a fault is known."""
        return [error.where for error in self._faults if isinstance(error, NodeLost)]

    def stop(self) -> None:
        self._stopping = True
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(2.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._thread.join(1.0)
        if self._process.stdout is not None:
            self._process.stdout.close()
