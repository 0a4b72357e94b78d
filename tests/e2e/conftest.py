"""The laptop profile run as a user runs it: as a program of its own, watched from outside."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from observing import is_alive

from profiles.schema import Profile
from tasks.run_folder import RUNS_ENV, RunFolder

PROGRAM = Path(sys.executable).parent / "retrain-dspark"
DEMO_ENV = "RETRAIN_DSPARK_DEMO_RUNS"
FOREIGN = ("PREFECT_", "MLFLOW_", "RETRAIN_DSPARK_")
MINUTE_S = 60
WATCH_S = 3.0
"""Reading the memory maps of a large process takes a tenth of a second of one core."""


@dataclass
class Watched:
    """What the process tree of a command did while it ran, sampled every few seconds."""

    peak_bytes: int = 0
    """Largest sum of proportional set sizes: shared pages count once."""
    addresses: set[tuple[str, int]] = field(default_factory=set)
    """Listening addresses, without those of Mooncake's transfer engine."""
    transfer_ports: dict[int, set[int]] = field(default_factory=dict)
    """Process id -> ports that Mooncake's transfer engine opened on every interface (docs/security.md)."""
    keys: set[str] = field(default_factory=set)
    """Keys of the servers, which only their environment may hold."""
    names: set[str] = field(default_factory=set)
    processes: set[psutil.Process] = field(default_factory=set)

    def look(self, root: psutil.Process) -> None:
        total = 0
        for process in [root, *root.children(recursive=True)]:
            self.processes.add(process)
            try:
                total += _proportional_bytes(process.pid)
                environment = process.environ()
                self.names.add(" ".join(process.cmdline()))
                listening = [c.laddr for c in process.net_connections("inet") if c.status == "LISTEN"]
            except (psutil.Error, OSError):
                continue
            wide = {address.port for address in listening if address.ip in ("0.0.0.0", "::")}
            if wide and _is_store_client(process.pid):
                self.transfer_ports.setdefault(process.pid, set()).update(wide)
                listening = [address for address in listening if address.port not in wide]
            self.addresses |= {(address.ip, address.port) for address in listening}
            if key := environment.get("VLLM_API_KEY"):
                self.keys.add(key)
        self.peak_bytes = max(self.peak_bytes, total)


def _is_store_client(pid: int) -> bool:
    """Whether the process has loaded Mooncake's client library; the master is a program of its own."""
    maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    return re.search(r"/mooncake/[^ ]*\.so", maps) is not None


def _proportional_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


@dataclass
class Command:
    """A command that has ended."""

    root: Path
    code: int
    output: str
    seconds: float
    watched: Watched

    @property
    def run(self) -> RunFolder:
        return newest_run(self.root)

    @property
    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.run.path / "summary.json").read_text(encoding="utf-8"))
        return summary

    def stage_result(self, folder: str) -> dict[str, Any]:
        """The `result` of a stage's manifest, e.g. of `05-evaluate`."""
        text = (self.run.path / folder / "manifest.json").read_text(encoding="utf-8")
        result: dict[str, Any] = json.loads(text)["result"]
        return result


def newest_run(root: Path) -> RunFolder:
    return RunFolder(max(path.parent for path in root.glob("*/run.json")))


def run_command(root: Path, *words: str, timeout_s: float) -> Command:
    """Run `retrain-dspark` with its own run root and watch its processes; ended if it takes too long."""
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    environment = {n: v for n, v in os.environ.items() if not n.startswith(FOREIGN)}
    output = root / "output.txt"
    started = time.monotonic()
    with open(output, "wb") as stream:
        process = subprocess.Popen(
            (str(PROGRAM), *words),
            cwd=root,
            env={**environment, RUNS_ENV: str(root)},
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    watched, over = Watched(), threading.Event()
    watcher = threading.Thread(target=_watch, args=(psutil.Process(process.pid), watched, over))
    watcher.start()
    try:
        code = process.wait(timeout_s)
    except BaseException:
        process.terminate()
        process.wait(30)
        raise
    finally:
        over.set()
        watcher.join()
    seconds = time.monotonic() - started
    return Command(root, code, output.read_text(encoding="utf-8", errors="replace"), seconds, watched)


def _watch(root: psutil.Process, watched: Watched, over: threading.Event) -> None:
    while not over.wait(WATCH_S):
        try:
            watched.look(root)
        except psutil.NoSuchProcess:
            return


def processes_of(root: Path) -> list[str]:
    """Living processes that were started for runs under `root`, by their environment."""
    mark = f"{RUNS_ENV}={root}".encode()
    found = []
    for process in psutil.process_iter():
        try:
            environment = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
            if mark in environment and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except (psutil.Error, OSError):
            continue
    return found


@pytest.fixture(scope="session")
def command() -> Callable[..., Command]:
    """`command(root, *words, timeout_s=...)` runs `retrain-dspark` and returns what happened."""
    return run_command


@pytest.fixture(scope="session")
def left_running() -> Callable[[Command], list[str]]:
    """Processes that a command left: by their environment, and those that were seen while it ran.

    Ports say nothing: another program may take one as soon as it is free.
    """

    def left(done: Command) -> list[str]:
        alive = [process for process in done.watched.processes if is_alive(process)]
        return processes_of(done.root) + [f"{process.pid} {process.name()}" for process in alive]

    return left


def demo_root() -> Path:
    """Where the full run is kept, so that the controls use its captures."""
    if given := os.environ.get(DEMO_ENV):
        return Path(given).absolute()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "retrain-dspark" / "verify" / "demo"


def run_demo() -> Command:
    """Run the laptop profile as it is, in an empty run root."""
    root = demo_root()
    shutil.rmtree(root, ignore_errors=True)
    return run_command(root, "run", "-p", "laptop", timeout_s=40 * MINUTE_S)


@pytest.fixture(scope="session")
def demo() -> Command:
    """The full run, made now."""
    return run_demo()


@pytest.fixture(scope="session")
def demo_run(request: pytest.FixtureRequest) -> RunFolder:
    """A full run of today's laptop profile; an earlier one serves as well if nothing in it would change."""
    from profiles.load import load_profile

    root = demo_root()
    wanted: Profile = load_profile("laptop").profile
    for path in sorted(root.glob("*/summary.json"), reverse=True):
        run = RunFolder(path.parent)
        finished = json.loads(path.read_text(encoding="utf-8"))["status"] in ("completed", "held")
        if finished and run.profile() == wanted:
            return run
    done: Command = request.getfixturevalue("demo")
    assert done.summary["status"] in ("completed", "held"), done.output[-4000:]
    return done.run
