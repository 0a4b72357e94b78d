"""A Slurm cluster of three "nodes" on this machine: real daemons, each node in namespaces of its own.

Each node has its own network (a veth pair to a bridge), its own host name, and `private/`, a folder that the
other nodes and the controller's side cannot read. Needs root, iproute2 and Debian's packages `slurmctld`,
`slurmd`, `slurm-client` and `munge`, which are installed here where they are missing.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tasks.processes.ports import free_port

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "munged")
NODES = ("n1", "n2", "n3")
LOGIN = "login"
_READY_S = 30.0
_CONFIG = """\
ClusterName=emulated
SlurmctldHost={host}({controller})
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout={node_timeout_s}
MessageTimeout=5
KillWait=3
InactiveLimit=0
MpiDefault=none
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
MailProg=/bin/true
"""


@dataclass
class SlurmCluster:
    """A running cluster.

    Args:
        folder: Configuration, logs, state; `private/` in it is each node's own.
        prefix: Before the names of namespaces and devices.
        subnet: First three numbers of the addresses; nodes are 1 to 3, the login node is 9.
    """

    folder: Path
    prefix: str
    subnet: str
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def private(self) -> Path:
        """The same path on every node, and another folder on each."""
        return self.folder / "private"

    @property
    def environment(self) -> Mapping[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.conf)}

    def namespace(self, node: str) -> str:
        return f"{self.prefix}-{node}"

    def device(self, node: str) -> str:
        """This machine's end of the node's veth pair."""
        return f"{self.prefix}{node}"

    def address(self, node: str) -> str:
        return f"{self.subnet}.{[*NODES, LOGIN].index(node) + 1}"

    def enter(self, node: str) -> list[str]:
        """Words before a command that run it in the network of a node."""
        return ["nsenter", f"--net=/run/netns/{self.namespace(node)}"]

    def content(self, node: str) -> Path:
        """The node's private folder as root sees it from outside; nothing of the product knows this path."""
        return self.folder / "nodes" / node

    def bytes_sent(self, node: str) -> int:
        """Bytes that a node has sent; its device's other end has received them."""
        return self._counter(node, "rx_bytes")

    def bytes_received(self, node: str) -> int:
        return self._counter(node, "tx_bytes")

    def bytes_here(self) -> int:
        """Bytes that this machine itself, beside the nodes, has sent to and received from them."""
        folder = Path(f"/sys/class/net/{self.prefix}br/statistics")
        return sum(int((folder / name).read_text()) for name in ("rx_bytes", "tx_bytes"))

    def _counter(self, node: str, name: str) -> int:
        return int(Path(f"/sys/class/net/{self.device(node)}/statistics/{name}").read_text())

    def command(self, *words: str) -> str:
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def jobs(self) -> list[str]:
        """Jobs that wait or run."""
        return self.command("squeue", "--noheader", "--format=%i %j %T").splitlines()

    def processes(self, node: str) -> list[int]:
        return _pids(self.namespace(node))

    def work(self, node: str) -> list[str]:
        """Command lines on a node that are not Slurm's own daemon."""
        found = []
        for pid in self.processes(node):
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                if line and not line.startswith(("slurmd ", "slurmstepd", "sleep ")) and f"{pid}" != line:
                    found.append(line)
        return found

    def remove(self, node: str) -> None:
        """What a power failure does: the link goes, and every process."""
        _ip("link", "set", self.device(node), "down")
        _kill(self.namespace(node))
        daemon = self.daemons.pop(node, None)
        if daemon is not None:
            daemon.wait()

    def restore(self, node: str) -> None:
        """The node comes back, empty."""
        _ip("link", "set", self.device(node), "up")
        self.daemons[node] = _slurmd(self, node)
        self.wait_idle(60.0)

    def wait_idle(self, timeout_s: float = _READY_S) -> None:
        """Wait until every node can take a job."""
        deadline = time.monotonic() + timeout_s
        while True:
            states = subprocess.run(
                ("sinfo", "-h", "-N", "-p", "batch", "-o", "%N %t"),
                env=self.environment,
                capture_output=True,
                text=True,
            ).stdout
            if sorted(states.split("\n")[:-1]) == [f"{node} idle" for node in NODES]:
                return
            assert time.monotonic() < deadline, f"{states}\n{self._logs()}"
            time.sleep(0.1)

    def _logs(self) -> str:
        tails = [path.read_text(errors="replace")[-600:] for path in sorted(self.folder.glob("slurm*.log"))]
        return "\n".join(tails)


@contextmanager
def slurm_cluster(folder: Path, node_timeout_s: int = 10) -> Iterator[SlurmCluster]:
    """Start the cluster; on every way out each daemon, process, namespace and device of it is removed."""
    _require()
    number = os.getpid()
    cluster = SlurmCluster(folder, f"rs{number % 100_000}", f"10.212.{number % 250}")
    with ExitStack() as stack:
        stack.callback(_remove, cluster)
        _make_network(cluster)
        _write_files(cluster, node_timeout_s)
        cluster.daemons["munged"] = _munged(cluster)
        cluster.daemons["slurmctld"] = _start(cluster, ["slurmctld", "-D", "-i"], "slurmctld.out")
        for node in NODES:
            cluster.daemons[node] = _slurmd(cluster, node)
        cluster.wait_idle()
        yield cluster


def _require() -> None:
    """Have root and the programs; the test is skipped with the command that helps where that cannot be."""
    command = f"apt-get install -y --no-install-recommends {' '.join(PACKAGES)}"
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip(f"an emulated cluster needs root and iproute2: sudo make test; {command}")
    if all(shutil.which(name) for name in PROGRAMS):
        return
    if shutil.which("apt-get") is None:
        pytest.skip(f"Slurm is not installed and there is no apt-get; on Debian or Ubuntu: {command}")
    # The daemons are started here with a configuration of their own, never by the packages' scripts.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for words in (["apt-get", "update", "-qq"], command.split()):
        done = subprocess.run(
            words, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
    if not all(shutil.which(name) for name in PROGRAMS):
        pytest.fail(f"{command} failed:\n{done.stdout}{done.stderr}")


def _make_network(cluster: SlurmCluster) -> None:
    bridge = f"{cluster.prefix}br"
    _ip("link", "add", bridge, "type", "bridge")
    _ip("address", "add", f"{cluster.subnet}.254/24", "dev", bridge)
    _ip("link", "set", bridge, "up")
    for node in (*NODES, LOGIN):
        name, device = cluster.namespace(node), cluster.device(node)
        _ip("netns", "add", name)
        _ip("link", "add", device, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", device, "master", bridge, "up")
        _ip("-n", name, "address", "add", f"{cluster.address(node)}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        _ip("-n", name, "link", "set", "lo", "up")


def _write_files(cluster: SlurmCluster, node_timeout_s: int) -> None:
    folder = cluster.folder
    for name in ("munge", "state", "private", *(f"spool-{node}" for node in NODES)):
        (folder / name).mkdir(parents=True, mode=0o755)
    for node in NODES:
        cluster.content(node).mkdir(parents=True, mode=0o700)
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    text = _CONFIG.format(
        host=os.uname().nodename,
        controller=f"{cluster.subnet}.254",
        port=free_port(f"{cluster.subnet}.254"),
        folder=folder,
        node_timeout_s=node_timeout_s,
    )
    for node in NODES:
        text += f"NodeName={node} NodeHostname={node} NodeAddr={cluster.address(node)} Port=17001 CPUs=8 "
        text += "RealMemory=4000 State=UNKNOWN\n"
    for name, tier in (("batch", 1), ("urgent", 10)):
        default = "YES" if name == "batch" else "NO"
        text += f"PartitionName={name} Nodes=n[1-3] Default={default} MaxTime=INFINITE PriorityTier={tier}\n"
    cluster.conf.write_text(text)
    names = [f"{cluster.address(node)} {node}" for node in NODES]
    (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *names, ""]))
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")


def _start(cluster: SlurmCluster, words: list[str], output: str) -> subprocess.Popen[bytes]:
    with open(cluster.folder / output, "ab") as stream:
        return subprocess.Popen(
            words,
            env=cluster.environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _munged(cluster: SlurmCluster) -> subprocess.Popen[bytes]:
    folder = cluster.folder / "munge"
    files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    options = [f"--{option}={folder / name}" for option, name in files.items()]
    process = _start(
        cluster, ["munged", "--force", "--foreground", "--num-threads=2", *options], "munged.out"
    )
    deadline = time.monotonic() + _READY_S
    while not (folder / "socket").exists():
        assert process.poll() is None and time.monotonic() < deadline, "munged does not start"
        time.sleep(0.02)
    return process


def _slurmd(cluster: SlurmCluster, node: str) -> subprocess.Popen[bytes]:
    """The node's daemon: own host name and mounts, in which other nodes' folders do not exist.

    Its cgroup plugin wants to find a cgroup mount, of whatever kind, although nothing here uses it.
    """
    folder = cluster.folder
    inside = (
        f"hostname {node} && mount --bind {folder}/nodes/{node} {folder}/private"
        f" && mount -t tmpfs none {folder}/nodes"
        # A new sysfs shows the devices of this network.
        " && mount -t sysfs none /sys && mount -t tmpfs none /sys/fs/cgroup"
        f" && mount --bind {folder}/hosts /etc/hosts"
        f" && exec slurmd -D -N {node}"
    )
    words = [
        *cluster.enter(node),
        "unshare",
        "--uts",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        inside,
    ]
    return _start(cluster, words, f"slurmd-{node}.out")


def _remove(cluster: SlurmCluster) -> None:
    """By id only: daemons that were started here, and what is in namespaces that were made here."""
    for node in (*NODES, LOGIN):
        _kill(cluster.namespace(node))
    for daemon in cluster.daemons.values():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(daemon.pid, signal.SIGTERM)
    for daemon in cluster.daemons.values():
        try:
            daemon.wait(5.0)
        except subprocess.TimeoutExpired:
            os.killpg(daemon.pid, signal.SIGKILL)
            daemon.wait()
    for node in (*NODES, LOGIN):
        subprocess.run(["ip", "link", "del", cluster.device(node)], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "del", cluster.namespace(node)], capture_output=True, check=False)
    subprocess.run(["ip", "link", "del", f"{cluster.prefix}br"], capture_output=True, check=False)


def remains(cluster: SlurmCluster) -> list[str]:
    """Namespaces and devices of a cluster that still exist."""
    out = [
        subprocess.run(["ip", *words], capture_output=True, text=True, check=True).stdout
        for words in (["netns", "list"], ["-o", "link"])
    ]
    return re.findall(rf"{cluster.prefix}\S*", "\n".join(out))


def _pids(namespace: str) -> list[int]:
    found = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]


def _kill(namespace: str) -> None:
    deadline = time.monotonic() + 10.0
    while (pids := _pids(namespace)) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], capture_output=True, text=True, check=True)
