"""A run whose processes start on the nodes of an emulated cluster."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slurm_cluster import SlurmCluster

from profiles.schema import Profile
from tasks.processes.launcher import ProcessSpec, launcher_of
from tasks.processes.slurm.launcher import SlurmLauncher
from tasks.run_folder import RunFolder, create_run


def cluster_profile(slurm: dict[str, Any] | None = None, **launch: Any) -> Profile:
    """One node trains, two serve."""
    options = {"time_limit_minutes": 5, "node_silence_s": 10, "driver_silence_s": 10, **(slurm or {})}
    roles = {"colocated": False, "serve": {"nodes": 2}, "train": {"nodes": 1}}
    return Profile.model_validate(
        {
            "name": "cluster",
            "hardware": {"roles": roles},
            "launch": {"kind": "slurm", "slurm": options, **launch},
            "target": {"model": "nowhere", "aux_layer_ids": [2]},
        }
    )


@contextmanager
def opened(
    cluster: SlurmCluster, root: Path, profile: Profile, run_id: str = "r1"
) -> Iterator[tuple[SlurmLauncher, RunFolder, list[str]]]:
    """A launcher of that run, closed at the end; with what was told while nodes were waited for."""
    run = create_run(root, run_id, profile)
    told: list[str] = []
    launcher = launcher_of(profile, run, lambda _, note: told.append(note))
    assert isinstance(launcher, SlurmLauncher)
    try:
        yield launcher, run, told
    finally:
        launcher.close()


def program(name: str, role: str, code: str, stage: str = "", **fields: Any) -> ProcessSpec:
    """A Python program as a process of a role."""
    stage = stage or {"serve": "serve", "train": "stream"}[role]
    return ProcessSpec(name=name, stage=stage, role=role, argv=(sys.executable, "-S", "-c", code), **fields)


def until(condition: Callable[[], object], timeout_s: float = 30.0) -> Any:
    """Wait for a condition and return its value."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
    return value


def said(caplog: Any) -> str:
    return "\n".join(record.getMessage() for record in caplog.records if record.levelno >= logging.INFO)
