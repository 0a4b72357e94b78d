"""The laptop profile on an emulated cluster: the target on one node, capture and training on another.

The flow runs on a login node. No node can read the other's folder, in which the hidden-state log is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cluster_runs import new_cluster, nothing_is_left
from slurm_cluster import LOGIN, NODES, SlurmCluster

from tasks.run_folder import RUNS_ENV
from tasks.stages import STAGE_NAMES

pytestmark = [pytest.mark.e2e, pytest.mark.verify("slurm"), pytest.mark.timeout(3600)]
PROGRAM = Path(sys.executable).parent / "retrain-dspark"
FOREIGN = ("PREFECT_", "MLFLOW_", "RETRAIN_DSPARK_")
SMALLER = (
    "prompts.train_per_domain=6",
    "prompts.evaluate_per_domain=2",
    "stream.max_new_tokens=28",
    "train.epochs=2",
    "evaluate.replay_max_new_tokens=24",
    "evaluate.live.per_domain=1",
    "evaluate.live.max_new_tokens=16",
    "hardware.roles.colocated=false",
    "hardware.min_memory_gib=1",
    "launch.kind=slurm",
    "launch.slurm.allocation=per_phase",
    "launch.slurm.time_limit_minutes=40",
)


@dataclass
class FlowOnLogin:
    """`retrain-dspark` as a program on the login node."""

    cluster: SlurmCluster
    root: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        with open(self.root / "output.txt", "ab") as stream:
            process = subprocess.Popen(
                [*self.cluster.enter(LOGIN), str(PROGRAM), *words],
                cwd=self.root,
                env={**kept, RUNS_ENV: str(self.root), "SLURM_CONF": str(self.cluster.conf)},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def run(self, *words: str, timeout_s: float = 3300) -> int:
        return self.start(*words).wait(timeout_s)

    @property
    def output(self) -> str:
        return (self.root / "output.txt").read_text(encoding="utf-8", errors="replace")

    @property
    def folder(self) -> Path:
        return max(path.parent for path in self.root.glob("*/run.json"))

    @property
    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "summary.json").read_text(encoding="utf-8"))
        return found

    def stage_status(self) -> dict[str, str]:
        return {stage["name"]: stage["status"] for stage in self.summary["stages"]}


@pytest.fixture(scope="module")
def running_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with new_cluster(tmp_path_factory) as found:
        yield found


@pytest.fixture
def flow(running_cluster: SlurmCluster, tmp_path: Path) -> Iterator[FlowOnLogin]:
    running_cluster.wait_idle()
    flow = FlowOnLogin(running_cluster, tmp_path / "runs")
    try:
        yield flow
    finally:
        for process in flow.processes:
            if process.poll() is None:
                process.terminate()
                process.wait(60)


def words_of(cluster: SlurmCluster, *more: str) -> list[str]:
    scratch = f"launch.scratch={cluster.private}/logs"
    return [word for one in (*SMALLER, scratch, *more) for word in ("--set", one)]


def test_a_whole_run_on_three_nodes(
    flow: FlowOnLogin, record_property: Callable[[str, object], None]
) -> None:
    """All six stages; hidden states go from the serving to the training node and nowhere else."""
    cluster = flow.cluster
    before = {node: (cluster.bytes_sent(node), cluster.bytes_received(node)) for node in (*NODES, LOGIN)}
    code = flow.run("run", "-p", "laptop", *words_of(cluster))
    assert "Traceback" not in flow.output, flow.output[-6000:]
    assert code in (0, 1) and flow.summary["status"] in ("completed", "held"), flow.output[-4000:]
    assert flow.stage_status() == dict.fromkeys(STAGE_NAMES, "completed")
    capture = flow.summary["capture"]
    logs = {node: files_of(cluster, node) for node in NODES}
    (trained,) = [node for node, files in logs.items() if files]
    assert len(logs[trained]) == capture["samples"]
    sent = {node: cluster.bytes_sent(node) - before[node][0] for node in (*NODES, LOGIN)}
    received = {node: cluster.bytes_received(node) - before[node][1] for node in (*NODES, LOGIN)}
    record_property("capture_bytes", capture["bytes"])
    record_property("samples", capture["samples"])
    record_property("received_by_training_node", received[trained])
    record_property("moved_by_login_node", sent[LOGIN] + received[LOGIN])
    print(sent, received, capture)
    assert received[trained] > capture["bytes"]
    nothing_is_left(cluster)


def files_of(cluster: SlurmCluster, node: str) -> list[Path]:
    return [path for path in cluster.content(node).glob("logs/*/*.safetensors") if path.stat().st_size]
