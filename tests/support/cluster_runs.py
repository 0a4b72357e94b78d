"""A run whose processes start on the nodes of an emulated cluster."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import NODES, SlurmCluster, remains, slurm_cluster

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
def new_cluster(factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A cluster for the tests of a module; nothing of it remains."""
    with slurm_cluster(factory.mktemp("slurm") / "c") as found:
        yield found
    assert remains(found) == []


def made_ready(cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> SlurmCluster:
    """The cluster with nothing on it, and this process told where it is."""
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
    cluster.wait_idle()
    for node in NODES:
        shutil.rmtree(cluster.content(node) / "logs", ignore_errors=True)
    return cluster


def nothing_is_left(cluster: SlurmCluster) -> None:
    """No job, and no process on any node."""
    until(lambda: not cluster.jobs(), 60.0)
    until(lambda: not any(cluster.work(node) for node in NODES))


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
