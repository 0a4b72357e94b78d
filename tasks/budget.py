"""The hard budget of a run: what it holds is counted over all attempts, and beyond the limit it stops.

Looked at before each start of a process, at each look at one and at each line of progress, so that a run
stops between two of them, as after an error of its own: processes end, a trainer writes its checkpoint, and
`resume` goes on from there once the limit is raised.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiles.schema import Profile
from tasks.errors import BudgetSpent
from tasks.evaluate.worth.stages import gpus_of_node
from tasks.plan.cost import gpus_of_places
from tasks.plan.topology import planned_topology
from tasks.report.progress import RunProgress
from tasks.run_folder import RunFolder
from tasks.stage import write_atomic

HELD = "held.json"
_KEPT_EVERY_S = 10.0


@dataclass(frozen=True)
class Held:
    """What a run has held so far; GPUs that nobody has counted yet are left out."""

    node_hours: float = 0.0
    gpu_hours: float = 0.0


def held_so_far(run: Path) -> Held:
    """What all attempts at a run have held, as last written down."""
    try:
        found = json.loads((run / HELD).read_text(encoding="utf-8"))
        return Held(float(found["node_hours"]), float(found["gpu_hours"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Held()


class Spending:
    """Counts one attempt on top of the earlier ones.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, run: RunFolder, profile: Profile, clock: Callable[[], float] = time.monotonic) -> None:
        self._run = run
        self._budget = profile.budget
        self._clock = clock
        self._topology = planned_topology(profile)
        self._gpus = gpus_of_places(self._topology)
        self._before = held_so_far(run.path)
        self._began = self._kept = clock()

    @property
    def held(self) -> Held:
        """Of all attempts, until now. GPUs that the profile does not count are what the checks found."""
        hours = (self._clock() - self._began) / 3600
        nodes = len(self._topology.places)
        if self._gpus is None and (found := gpus_of_node(self._run.path)) is not None:
            self._gpus = nodes * found
        return Held(
            self._before.node_hours + hours * nodes, self._before.gpu_hours + hours * (self._gpus or 0)
        )

    def check(self) -> None:
        """Keep count, and stop the run where it has used its budget.

        Raises:
            BudgetSpent: A limit is reached; with both values.
        """
        held = self.held
        if self._clock() - self._kept >= _KEPT_EVERY_S:
            self.keep()
        for field, used, limit in (
            ("gpu_hours", held.gpu_hours, self._budget.gpu_hours),
            ("node_hours", held.node_hours, self._budget.node_hours),
        ):
            if limit is not None and used >= limit:
                unit = field.replace("gpu_", "GPU-").replace("node_", "node-")
                raise BudgetSpent(
                    f"the run has used its budget: {used:.4g} of {limit:g} {unit}, all attempts together",
                    where=f"budget.{field}",
                    hint=f"retrain-dspark resume {self._run.run_id} --set budget.{field}=... goes on with a "
                    "larger one",
                )

    def keep(self) -> None:
        """Write down what was held, so that a killed attempt counts too."""
        held = self.held
        self._kept = self._clock()
        write_atomic(
            self._run.path / HELD, json.dumps({"node_hours": held.node_hours, "gpu_hours": held.gpu_hours})
        )


class WatchedProgress:
    """A display that also looks at the budget."""

    def __init__(self, shown: RunProgress, spending: Spending) -> None:
        self._shown = shown
        self._spending = spending

    def update(self, **work: Any) -> None:
        self._shown.update(**work)
        self._spending.check()

    def stage_started(self, name: str, reason: str) -> None:
        self._shown.stage_started(name, reason)

    def stage_reused(self, name: str) -> None:
        self._shown.stage_reused(name)

    def stage_ended(self, name: str, status: str, seconds: float) -> None:
        self._shown.stage_ended(name, status, seconds)

    def say(self, line: str) -> None:
        self._shown.say(line)


class WatchedLauncher:
    """A launcher whose processes are looked at together with the budget; all else is the launcher's own."""

    def __init__(self, launcher: Any, spending: Spending) -> None:
        self._launcher = launcher
        self._spending = spending

    def __getattr__(self, name: str) -> Any:
        return getattr(self._launcher, name)

    def start(self, *words: Any, **options: Any) -> Any:
        self._spending.check()
        return WatchedHandle(self._launcher.start(*words, **options), self._spending)


class WatchedHandle:
    """A process that is not looked at beyond the budget."""

    def __init__(self, handle: Any, spending: Spending) -> None:
        self._handle = handle
        self._spending = spending

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)

    def poll(self) -> int | None:
        status: int | None = self._handle.poll()
        if status is None:
            self._spending.check()
        return status
