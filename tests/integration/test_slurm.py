"""Real processes on the three nodes of an emulated Slurm cluster: started, watched, ended, nothing left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_runs import cluster_profile, made_ready, new_cluster, nothing_is_left, opened, program, until
from slurm_cluster import NODES, SlurmCluster

from tasks.errors import AllocationEnded, ServiceError, UsageError
from tasks.processes.group import start_all
from tasks.processes.guard import close_registry
from tasks.processes.launcher import Handle, ProcessSpec
from tasks.processes.registry import reap_stale

pytestmark = pytest.mark.integration
QUIET = "--output=/dev/null"
CANARY = "canary-7f1e93"
SLEEPS = "import time; print('up', flush=True); time.sleep(600)"
LISTENS = (
    "import os, socket, time; s = socket.create_server((os.environ['RETRAIN_DSPARK_NODE_ADDRESS'], {port}));"
    " print('listens', os.environ['VLLM_API_KEY'][:6], flush=True);"
    " c, _ = s.accept(); c.sendall(b'x' * 500_000)"
)
CONNECTS = (
    "import os, socket; c = socket.create_connection(('{host}', {port})); n = 0\n"
    "while block := c.recv(65536): n += len(block)\n"
    "print('received', n, os.environ['NCCL_SOCKET_IFNAME'], os.environ['MOONCAKE_LOCAL_HOSTNAME'])\n"
    "open('{private}/seen', 'w').write('here')"
)


@pytest.fixture(scope="module")
def running_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with new_cluster(tmp_path_factory) as found:
        yield found


@pytest.fixture
def cluster(running_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> SlurmCluster:
    return made_ready(running_cluster, monkeypatch)


def wait_end(handle: Handle, timeout_s: float = 30.0) -> int:
    return int(until(lambda: (status := handle.poll()) is not None and [status], timeout_s)[0])


def test_roles_run_on_their_nodes_and_nothing_is_left(
    cluster: SlurmCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Three processes on three nodes; bytes go from the serving to the training node; no secret is seen."""
    caplog.set_level("INFO")
    with opened(cluster, tmp_path, cluster_profile()) as (launcher, run, told):
        place = launcher.place(run.profile(), run, "serve", "serve")
        host = place.profile.serve.host
        assert host == cluster.address(place.nodes[0]) == place.profile.store.host
        port = place.port(host)
        server = program(
            "server", "serve", LISTENS.format(port=port), secret_env={"VLLM_API_KEY": CANARY}, ports=(port,)
        )
        second = program("server-1", "serve", SLEEPS, node=1)
        serving, other = start_all(launcher, (server, second), run)
        until(lambda: "listens canary" in " ".join(serving.tail()))
        assert serving.listens_on(port) and not other.listens_on(port)
        assert CANARY not in seen_of(cluster), "an argument list or a job's environment shows a secret"
        before = cluster.bytes_sent(place.nodes[0])
        code = CONNECTS.format(host=host, port=port, private=cluster.private)
        client = launcher.start(program("client", "train", code), run)
        assert wait_end(client) == 0 and wait_end(serving) == 0
        train = launcher.place(run.profile(), run, "stream", "train")
        assert f"received 500000 eth0 {train.profile.store.host}" in client.tail(), client.tail()
        assert cluster.bytes_sent(place.nodes[0]) - before >= 500_000
        assert {place.nodes[0], place.nodes[1], train.nodes[0]} == set(NODES)
        assert [(cluster.content(node) / "seen").exists() for node in place.nodes] == [False, False]
        assert (cluster.content(train.nodes[0]) / "seen").read_text() == "here"
        for handle in (client, serving, other):
            handle.stop()
        assert other.poll() == -signal.SIGTERM
    nothing_is_left(cluster)
    close_registry(run.services)
    assert [path.name for path in run.services.iterdir()] == []
    assert any("waits" in note for note in told) and "runs on n1 (10." in caplog.text
    assert CANARY not in "".join(path.read_text() for path in run.logs.iterdir())


def seen_of(cluster: SlurmCluster) -> str:
    """Argument lists of everything, environments of all but the process itself, and the jobs' scripts."""
    found = [cluster.command("squeue", "--noheader", "--format=%all")]
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes()
            holds = b"socket.create_server" in words
            variables = (
                b"" if holds or int(name) == os.getpid() else Path(f"/proc/{name}/environ").read_bytes()
            )
        except OSError:
            continue
        found.append((words + variables).decode(errors="replace"))
    for path in [*cluster.folder.glob("state/**/script*"), *cluster.folder.glob("state/**/environment*")]:
        found.append(path.read_bytes().decode(errors="replace"))
    return "\n".join(map(str, found))


def test_a_failing_process_says_why(cluster: SlurmCluster, tmp_path: Path) -> None:
    """An exit status, a signal and a program that is not there, as on this machine; all or none start."""
    with opened(cluster, tmp_path, cluster_profile()) as (launcher, run, _):
        ends = launcher.start(program("ends", "train", "raise SystemExit(3)"), run)
        killed = launcher.start(program("killed", "serve", "import os; os.kill(os.getpid(), 9)"), run)
        absent = launcher.start(ProcessSpec("absent", "stream", "train", ("/no/such/program",)), run)
        assert wait_end(ends) == 3 and wait_end(killed) == -signal.SIGKILL and wait_end(absent) == 127
        assert "/no/such/program: No such file or directory" in absent.tail()
        with pytest.raises(ServiceError, match="node 7 of role serve, which has 2"):
            start_all(launcher, (program("a", "train", SLEEPS), program("b", "serve", SLEEPS, node=7)), run)
        until(lambda: not any("time.sleep(600)" in line for node in NODES for line in cluster.work(node)))
        for handle in (ends, killed, absent):
            handle.stop()
    nothing_is_left(cluster)
    close_registry(run.services)


@pytest.mark.verify("slurm")
def test_slurm_refuses(cluster: SlurmCluster, tmp_path: Path) -> None:
    """A wrong partition is a mistake of the profile; too few nodes end the wait, and the job is withdrawn."""
    with (
        opened(cluster, tmp_path, cluster_profile({"partition": "no-such"})) as (launcher, run, _),
        pytest.raises(UsageError, match="invalid partition"),
    ):
        launcher.start(program("p", "train", SLEEPS), run)
    profile = cluster_profile({"exclude": ["n1"], "queue_timeout_s": 1.0})
    with (
        opened(cluster, tmp_path, profile, "r2") as (launcher, run, _),
        pytest.raises((AllocationEnded, UsageError)),
    ):
        launcher.start(program("p", "train", SLEEPS), run)
    nothing_is_left(cluster)


@pytest.mark.verify("slurm")
def test_a_job_that_waits_is_shown_and_withdrawn(cluster: SlurmCluster, tmp_path: Path) -> None:
    """While another job has the nodes, Slurm's reason is told; after the limit nothing stays in the queue."""
    other = cluster.command(
        "sbatch", "--parsable", "-N3", "--exclusive", QUIET, "--wrap", "sleep 600"
    ).strip()
    try:
        until(lambda: f"{other} wrap RUNNING" in cluster.jobs())
        profile = cluster_profile({"queue_timeout_s": 2.0})
        with (
            opened(cluster, tmp_path, profile) as (launcher, run, told),
            pytest.raises(AllocationEnded, match="no nodes after"),
        ):
            launcher.start(program("p", "train", SLEEPS), run)
        assert any("waits (Resources)" in note or "waits (Priority)" in note for note in told), told
        assert cluster.jobs() == [f"{other} wrap RUNNING"]
    finally:
        cluster.command("scancel", other)
    nothing_is_left(cluster)


@pytest.mark.verify("slurm")
def test_a_cancelled_job_ends_the_stage_with_its_node(cluster: SlurmCluster, tmp_path: Path) -> None:
    """`scancel` from elsewhere: the error names node and job, and can be resumed."""
    with opened(cluster, tmp_path, cluster_profile()) as (launcher, run, _):
        job = launcher.start(program("trainer", "train", SLEEPS, stage="train"), run)
        cluster.command("scancel", *{line.split()[0].split("+")[0] for line in cluster.jobs()})
        with pytest.raises(AllocationEnded, match="was cancelled") as raised:
            wait_end(job)
        assert "n1" in raised.value.where and raised.value.exit_code == 75
        job.stop()
    nothing_is_left(cluster)


OWNER = """
import sys, time
sys.path.insert(0, {support!r})
from pathlib import Path
from cluster_runs import cluster_profile, program
from tasks.processes.launcher import launcher_of
from tasks.run_folder import create_run
run = create_run(Path({root!r}), "killed", cluster_profile())
launcher = launcher_of(run.profile(), run)
launcher.start(program("trainer", "train", "import time; time.sleep(600)"), run)
print("started", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("guarded", [True, pytest.param(False, marks=pytest.mark.verify("slurm"))])
def test_a_killed_flow_leaves_no_job(cluster: SlurmCluster, tmp_path: Path, guarded: bool) -> None:
    """`kill -9` of the flow: its guard cancels the job within seconds; without it the next start does."""
    support = str(Path(__file__).resolve().parents[1] / "support")
    words = [sys.executable, "-c", OWNER.format(support=support, root=str(tmp_path))]
    services = tmp_path / "killed" / "services"
    owner = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None and owner.stdout.readline() == "started\n"
        if not guarded:
            end_guard(services, owner.pid)
    finally:
        owner.kill()
        owner.wait()
    if not guarded:
        assert cluster.jobs()
        lines = reap_stale(tmp_path)
        assert any("cancelled job" in line for line in lines), lines
    nothing_is_left(cluster)
    until(lambda: not list(services.glob("*.slurm.json")))


def end_guard(services: Path, owner: int) -> None:
    """End the guard of a flow by its id."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if (
            b"tasks.processes.guard" in words
            and str(services).encode() in words
            and str(owner).encode() in words
        ):
            os.kill(int(name), signal.SIGKILL)
