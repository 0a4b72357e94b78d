"""A server that somebody else runs: captured from, never touched, whatever happens to the run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from profiles.schema import Profile
from tasks.errors import JobError, RetrainError, ServiceError
from tasks.processes.guard import close_registry
from tasks.processes.launcher import LocalLauncher
from tasks.processes.ports import free_port
from tasks.report.progress import SilentProgress
from tasks.run_folder import create_run
from tasks.serve.command import engine_version
from tasks.serve.target import TargetServer
from tasks.serve.vllm_http import Server
from tasks.stream.core import capture
from tasks.stream.log import INDEX, read_index
from tasks.stream.models import CaptureManifest
from tasks.stream.store import StoreClient
from tests.support.tiny_target import AUX_LAYERS, make_target

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
FAKE = ROOT / "tests" / "fakes" / "explained_server.py"
PROMPTS = 10
LONG = pytest.mark.verify("streaming")
"""What differs little from its neighbours and takes as long as they."""
Changes = dict[str, Any]


class TheirServer:
    """A running server and what is known about it before we come."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, master: str, target: Path):
        self.process, self.port, self.master, self.target = process, port, master, target
        self.began = psutil.Process(process.pid).create_time()
        self.argv = psutil.Process(process.pid).cmdline()

    def is_untouched(self) -> bool:
        """The same process still answers, and the other client's key is where it was; nothing else is."""
        now = psutil.Process(self.process.pid)
        alive = self.process.poll() is None and (now.create_time(), now.cmdline()) == (self.began, self.argv)
        with StoreClient(self.master) as store:
            kept = bytes(store.get("other-client")) == b"theirs"
            left = store.remove_matching("^cmpl-.*")
        return alive and kept and left == 0 and Server(f"http://127.0.0.1:{self.port}", "tiny").is_healthy()

    def profile(self, folder: Path, **changes: Any) -> Profile:
        rows = "".join(json.dumps({"prompt": f"Tell me about number {i}."}) + "\n" for i in range(PROMPTS))
        (folder / "qa.jsonl").write_text(rows)
        (folder / "qa-eval.jsonl").write_text(json.dumps({"prompt": "Name a colour."}) + "\n")
        prompts = {"train": (str(folder / "qa.jsonl"),), "evaluate": (str(folder / "qa-eval.jsonl"),)}
        values: dict[str, Any] = {
            "name": "t",
            "target": {
                "model": str(self.target),
                "aux_layer_ids": AUX_LAYERS,
                "dtype": "float32",
                "max_model_len": 200,
            },
            "store": {"master": self.master, "local_buffer_bytes": 32 * 2**20, "segment_bytes": 64 * 2**20},
            "serve": {"kind": "attach", "url": f"http://127.0.0.1:{self.port}", "served_name": "tiny"},
            "prompts": {
                **prompts,
                "train_per_domain": None,
                "evaluate_per_domain": None,
                "max_similarity": 1.0,
                "near_duplicate": 1.0,
                "held_out": 0.5,
            },
            "stream": {
                "in_flight_bytes": 8 * 2**20,
                "max_new_tokens": 12,
                "concurrency": 2,
                "canary_every": 3,
                "read_timeout_s": 120,
            },
            "evaluate": {"replay_max_new_tokens": 12},
        }
        for part, change in changes.items():
            values[part] = {**values[part], **change}
        return Profile.model_validate(values)


def _listens(process: subprocess.Popen[bytes], port: int) -> bool:
    sockets = psutil.Process(process.pid).net_connections("tcp")
    return any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in sockets)


@contextmanager
def _program(argv: list[str], port: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with log.open("wb") as stream:
        process = subprocess.Popen(argv, stdout=stream, stderr=stream, cwd=ROOT, env=environment)
    try:
        deadline = time.monotonic() + 240
        while not _listens(process, port):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


def _engine_version() -> str:
    try:
        return engine_version().split()[1]
    except ServiceError:
        return "0.32.0"


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TheirServer]:
    """A store's master and a server that writes to it; both must outlive every run."""
    folder = tmp_path_factory.mktemp("theirs")
    make_target(folder / "target")
    program = shutil.which("mooncake_master", path=str(Path(sys.executable).parent))
    assert program, "mooncake_master is not beside this Python"
    rpc, port = free_port(), free_port()
    master = [program, "-rpc_address=127.0.0.1", f"-rpc_port={rpc}", "-metrics_host=127.0.0.1"]
    master.append(f"-metrics_port={free_port()}")
    server = [sys.executable, str(FAKE), "--port", str(port), "--master", f"127.0.0.1:{rpc}"]
    server += ["--target", str(folder / "target"), "--version", _engine_version()]
    with _program(master, rpc, folder / "master.log"), _program(server, port, folder / "log") as process:
        yield TheirServer(process, port, f"127.0.0.1:{rpc}", folder / "target")


def attached_run(theirs: TheirServer, folder: Path, fault: str, **changes: Changes) -> CaptureManifest:
    """Attach, capture and let go, as the flow does it; the run's name tells the server its fault."""
    profile = theirs.profile(folder, **changes)
    run = create_run(folder / "runs", f"run-{fault}", profile)
    server = TargetServer(profile, run, LocalLauncher(), SilentProgress())
    try:
        identity, endpoint = server.open()
        assert server.handles() == () and identity.argv == ()
        return capture(
            profile,
            run,
            folder / "03-stream",
            endpoint,
            identity,
            theirs.target,
            LocalLauncher(),
            SilentProgress(),
            lambda: None,
        )
    finally:
        server.close()
        close_registry(run.services)


def test_a_whole_capture(theirs: TheirServer, tmp_path: Path) -> None:
    captures = attached_run(theirs, tmp_path, "announces-ours")
    assert captures.samples == PROMPTS + 1 and captures.counters.lost == 0
    assert captures.temperature == 0
    canary = captures.canary
    assert canary.checked and canary.runs >= 2 and canary.largest_gap < 1e-3
    assert canary.layer_ids_announced
    assert theirs.is_untouched()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("late", "off by one"),
        ("other-sample", "does not explain"),
        pytest.param("constant", "hidden states have one value throughout", marks=LONG),
        ("penalty", "--generation-config vllm"),
        pytest.param("no-handle", "does not extract hidden states", marks=LONG),
        pytest.param("fewer-layers", "hidden_states is", marks=LONG),
        ("announces-others", "captures layers [0, 2, 3, 4], the profile needs [1, 2, 3, 4]"),
    ],
)
def test_a_server_that_does_not_fit_is_named_before_the_first_sample(
    theirs: TheirServer, tmp_path: Path, fault: str, words: str
) -> None:
    with pytest.raises(RetrainError) as info:
        attached_run(theirs, tmp_path, fault)
    assert words in str(info.value)
    assert not read_index(tmp_path / "03-stream" / "log")
    assert theirs.is_untouched()


def test_wrong_settings_are_named_without_a_request(theirs: TheirServer, tmp_path: Path) -> None:
    make_target(tmp_path / "other", tied=False)
    target = {"model": str(tmp_path / "other"), "max_model_len": 256}
    with pytest.raises(ServiceError, match=r"is not target\.model") as info:
        attached_run(theirs, tmp_path, "none", target=target, store={"master": f"127.0.0.1:{free_port()}"})
    assert "store.master" in info.value.what
    assert theirs.is_untouched()


@pytest.mark.parametrize("how", ["Ctrl-C", pytest.param("the client is killed", marks=LONG)])
def test_an_interrupted_run_leaves_it_alone(theirs: TheirServer, tmp_path: Path, how: str) -> None:
    index = tmp_path / "03-stream" / "log" / INDEX
    seen: list[int] = []

    def interrupt() -> None:
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline:
            lines = index.read_text().count("\n") if index.exists() else 0
            if lines:
                seen.append(lines)
                client = json.loads(
                    (tmp_path / "runs" / "run-slow" / "services" / "capture.json").read_text()
                )
                ctrl_c = how == "Ctrl-C"
                os.kill(os.getpid() if ctrl_c else client["pid"], signal.SIGINT if ctrl_c else signal.SIGKILL)
                return
            time.sleep(0.01)

    watcher = threading.Thread(target=interrupt)
    watcher.start()
    with pytest.raises((KeyboardInterrupt, JobError)):
        attached_run(theirs, tmp_path, "slow", stream={"concurrency": 1})
    watcher.join()
    assert seen and len(read_index(tmp_path / "03-stream" / "log")) < PROMPTS + 1
    if how == "Ctrl-C":
        assert theirs.is_untouched()
    captures = attached_run(theirs, tmp_path, "slow")
    assert captures.samples == PROMPTS + 1, "a resume finds the same server and asks for the rest"
    assert theirs.is_untouched()
