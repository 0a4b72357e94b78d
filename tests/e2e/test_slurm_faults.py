"""What takes nodes away in the middle of work, on the emulated cluster: the node is named, all is gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster_runs import cluster_profile, made_ready, new_cluster, nothing_is_left, opened, program, until
from slurm_cluster import SlurmCluster

from tasks.errors import EXIT_RESUMABLE, AllocationEnded, NodeLost
from tasks.processes.launcher import Handle

pytestmark = [pytest.mark.integration, pytest.mark.verify("slurm")]
SLEEPS = "import time; time.sleep(600)"
SAVES = (
    "import signal, sys, time\n"
    "def save(*_):\n    open('{path}', 'w').write('saved'); sys.exit(75)\n"
    "signal.signal(signal.SIGTERM, save); time.sleep(600)"
)


@pytest.fixture(scope="module")
def running_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with new_cluster(tmp_path_factory) as found:
        yield found


@pytest.fixture
def cluster(running_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> SlurmCluster:
    return made_ready(running_cluster, monkeypatch)


def raised_by(handle: Handle, timeout_s: float) -> BaseException:
    """The error that asking for its end raises."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            status = handle.poll()
        except (NodeLost, AllocationEnded) as error:
            return error
        assert status is None, f"it ended with {status}: {handle.tail()}"
        time.sleep(0.05)
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("role", ["serve", "train"])
def test_a_node_that_fails_is_named(
    cluster: SlurmCluster, tmp_path: Path, role: str, record_property: Callable[[str, object], None]
) -> None:
    """A node loses power: within its silence it is named; the others' work still ends in order."""
    saved = tmp_path / "saved"
    with opened(cluster, tmp_path, cluster_profile()) as (launcher, run, _):
        other = "train" if role == "serve" else "serve"
        falls = launcher.start(program("falls", role, SLEEPS), run)
        stays = launcher.start(program("stays", other, SAVES.format(path=saved)), run)
        node = launcher.place(run.profile(), run, "serve" if role == "serve" else "stream", role).nodes[0]
        try:
            began = time.monotonic()
            cluster.remove(node)
            error = raised_by(stays, 40.0)
            record_property("named_after_s", round(time.monotonic() - began, 1))
            assert isinstance(error, NodeLost) and error.where == node and node in error.hint
            assert error.exit_code == EXIT_RESUMABLE
            falls.stop()
            stays.stop()
            assert saved.read_text() == "saved"
        finally:
            launcher.close()
            cluster.restore(node)
    nothing_is_left(cluster)


def test_a_preempted_job_is_named(cluster: SlurmCluster, tmp_path: Path) -> None:
    """A job of higher priority takes the nodes: the error says so; a new launcher gets nodes again."""
    with opened(cluster, tmp_path, cluster_profile()) as (launcher, run, _):
        trainer = launcher.start(program("trainer", "train", SLEEPS, stage="train"), run)
        urgent = cluster.command(
            "sbatch",
            "--parsable",
            "-p",
            "urgent",
            "-N3",
            "--exclusive",
            "-o",
            "/dev/null",
            "--wrap",
            "sleep 600",
        ).strip()
        error = raised_by(trainer, 60.0)
        assert isinstance(error, AllocationEnded) and "preempted" in error.what and "n1" in error.where
        trainer.stop()
    until(lambda: f"{urgent} wrap RUNNING" in cluster.jobs())
    cluster.command("scancel", urgent)
    nothing_is_left(cluster)
    with opened(cluster, tmp_path, cluster_profile(), "r2") as (launcher, run, _):
        launcher.start(program("trainer", "train", SLEEPS, stage="train"), run).stop()
    nothing_is_left(cluster)


def test_wall_time_lets_the_work_be_saved(cluster: SlurmCluster, tmp_path: Path) -> None:
    """A job at its time limit: the process gets Slurm's TERM and saves; the error names the limit."""
    saved = tmp_path / "saved"
    profile = cluster_profile({"time_limit_minutes": 1})
    with opened(cluster, tmp_path, profile) as (launcher, run, _):
        trainer = launcher.start(program("trainer", "train", SAVES.format(path=saved), stage="train"), run)
        error = raised_by(trainer, 150.0)
        assert isinstance(error, AllocationEnded) and "time limit" in error.what, error
        assert "launch.slurm.time_limit_minutes" in error.hint and saved.read_text() == "saved"
        trainer.stop()
    nothing_is_left(cluster)


def test_a_requeued_job_is_no_longer_ours(cluster: SlurmCluster, tmp_path: Path) -> None:
    """An administrator puts the job back into the queue: the run ends, and the job does not come back."""
    with opened(cluster, tmp_path, cluster_profile()) as (launcher, run, _):
        trainer = launcher.start(program("trainer", "train", SLEEPS, stage="train"), run)
        job = cluster.jobs()[0].split()[0].split("+")[0]
        cluster.command("scontrol", "update", f"JobId={job}", "Requeue=1")
        cluster.command("scontrol", "requeue", job)
        error = raised_by(trainer, 60.0)
        assert isinstance(error, AllocationEnded), error
        trainer.stop()
    nothing_is_left(cluster)


def test_serving_nodes_go_back_when_the_capture_is_done(cluster: SlurmCluster, tmp_path: Path) -> None:
    """`per_phase`: training goes on alone on its node, the evaluation asks for nodes of its own."""
    profile = cluster_profile({"allocation": "per_phase"})
    with opened(cluster, tmp_path, profile) as (launcher, run, _):
        target = launcher.start(program("target", "serve", SLEEPS), run)
        capture = launcher.start(program("capture", "train", "pass"), run)
        until(lambda: capture.poll() == 0)
        capture.stop()
        (train_node,) = launcher.place(run.profile(), run, "stream", "train").nodes
        target.stop()
        trainer = launcher.start(program("trainer", "train", SLEEPS, stage="train"), run)
        assert trainer.node == train_node
        until(lambda: len(cluster.jobs()) == 1)
        arm = launcher.start(program("arm", "serve", SLEEPS, stage="evaluate"), run)
        until(lambda: sum("RUNNING" in line for line in cluster.jobs()) == 2)
        assert trainer.poll() is None and arm.poll() is None and arm.node != train_node
        trainer.stop()
        arm.stop()
    nothing_is_left(cluster)


def test_a_job_ends_itself_without_its_flow(cluster: SlurmCluster, tmp_path: Path) -> None:
    """The machine of the flow dies: nobody cancels; the job ends when it has heard nothing for a while."""
    with opened(cluster, tmp_path, cluster_profile()) as (launcher, run, _):
        handle = launcher.start(program("trainer", "train", SLEEPS, stage="train"), run)
        for allocation in launcher._open:
            allocation._closed.set()  # no heart beats, nothing is cancelled: as if this machine were off
        until(lambda: not cluster.jobs(), 40.0)
        handle.stop()
    nothing_is_left(cluster)
