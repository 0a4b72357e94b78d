"""Captures through the product's own stage, with a real store master and the fake target.

The target is attached to (`serve.kind: attach`), as the product has no other way to use a server that it
did not start; the bench starts and restarts master and target on the same addresses, as their operator would.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from observing import until
from preloaded import PreloadedLauncher, start_program
from word_target import AUX_LAYERS, WORDS, write_tiny_target

from profiles.load import load_profile
from profiles.schema import Profile
from tasks.processes.ports import free_port
from tasks.report.progress import SilentProgress
from tasks.run_folder import RunFolder, create_run
from tasks.serve.target import TargetServer
from tasks.serve.target_folder import resolve_target
from tasks.stream.core import capture
from tasks.stream.log import HiddenStateLog
from tasks.stream.models import CaptureManifest
from tasks.stream.store import StoreClient

ROOT = Path(__file__).parents[2]
FAKE = ROOT / "tests" / "fakes" / "extracting_server.py"
KEY = "key-of-the-bench"
KEY_ENV = "STREAMING_BENCH_KEY"
SERVED = "tiny"
PROMPTS = 40
EVALUATE = 4
_SEGMENT_BYTES = 32 * 2**20


def write_prompts(folder: Path, count: int = PROMPTS, seed: int = 0) -> dict[str, tuple[str, ...]]:
    """Prompts of 4 to 16 random words, the last few for evaluation; values for `prompts`."""
    chosen = random.Random(seed)
    rows = [
        {"id": f"p-{i}", "prompt": " ".join(chosen.choices(WORDS, k=chosen.randint(4, 16)))}
        for i in range(count)
    ]
    for name, part in (("qa", rows[:-EVALUATE]), ("qa-eval", rows[-EVALUATE:])):
        text = "".join(json.dumps(row) + "\n" for row in part)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
    return {"train": (str(folder / "qa.jsonl"),), "evaluate": (str(folder / "qa-eval.jsonl"),)}


class Master:
    """A real store master on one address, which can be killed and started again.

    Args:
        flags: Further arguments of `mooncake_master`.
    """

    def __init__(self, folder: Path, *flags: str):
        self._flags = flags
        self.port = free_port("127.0.0.1")
        self._metrics_port = free_port("127.0.0.1")
        self._log = folder / "master.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        program = shutil.which("mooncake_master", path=str(Path(sys.executable).parent))
        assert program, "mooncake_master is not beside this Python"
        argv = [program, "-rpc_address=127.0.0.1", f"-rpc_port={self.port}", "-metrics_host=127.0.0.1"]
        argv += [f"-metrics_port={self._metrics_port}", "-client_ttl=60", *self._flags]
        with self._log.open("ab") as stream:
            self._process = subprocess.Popen(argv, stdout=stream, stderr=stream, start_new_session=True)
        until(lambda: listens(self.port), 60, "the master's port")

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class FakeTarget:
    """The fake target on one address, which can be killed and started again."""

    def __init__(self, folder: Path, model: Path | None, master: Master, **options: Any):
        self.port = free_port("127.0.0.1")
        self.holds = folder / "holds"
        self.holds.mkdir()
        self._log = folder / "target.log"
        self._argv = [str(FAKE), "--port", str(self.port), "--master", master.address]
        self._argv += ["--model", str(model)] if model else []
        given = {"served_model_name": SERVED, "layers": len(AUX_LAYERS) + 1, "segment_bytes": _SEGMENT_BYTES}
        given |= {"max_model_len": 128, "holds": self.holds, "version": _engine_version(), **options}
        for name, value in given.items():
            self._argv += [f"--{name.replace('_', '-')}", str(value)]
        self._process: BaseProcess | None = None
        self.start()

    def start(self) -> None:
        self._process = start_program(self._argv, self._log, {"VLLM_API_KEY": KEY})
        try:
            until(self._answers, 120, "the fake target")
        except BaseException:
            self.kill()
            raise

    def _answers(self) -> bool:
        assert self._process is not None and self._process.is_alive(), self._log.read_text()[-3000:]
        return listens(self.port)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.join()


def _engine_version() -> str:
    from tasks.serve.command import engine_version

    return engine_version().split()[1]


@dataclass(frozen=True)
class Moment:
    """When to kill: at the count-th time that a request of the run reaches a phase."""

    phase: str
    count: int

    @classmethod
    def of_seed(cls, victim: str, seed: int, prompts: int = PROMPTS) -> Moment:
        """A random share of the progress, and a random phase of the request there."""
        chosen = random.Random(f"{victim} {seed}")
        return cls(
            chosen.choice(("received", "answered", "stored")), 1 + int(chosen.random() * (prompts - 1))
        )


class Bench:
    """A master, a fake target, and captures of the same prompts in run folders of their own."""

    def __init__(self, folder: Path, prompts: int = PROMPTS, **target: Any):
        os.environ[KEY_ENV] = KEY
        self.folder = folder
        self.prompts = prompts
        self.model = write_tiny_target(folder / "target")
        self._prompts = write_prompts(folder, prompts)
        self.launcher = PreloadedLauncher()
        self.master = Master(folder)
        try:
            self.target = FakeTarget(folder, self.model, self.master, **target)
        except BaseException:
            self.master.kill()
            raise

    def profile(self, **stream: Any) -> Profile:
        """The laptop's profile with the tiny target, attached to the fake."""
        over = {
            "target": {
                "model": str(self.model),
                "source": {"kind": "path"},
                "aux_layer_ids": list(AUX_LAYERS),
                "max_model_len": 128,
            },
            "serve": {
                "kind": "attach",
                "url": f"http://127.0.0.1:{self.target.port}",
                "served_name": SERVED,
                "api_key_env": KEY_ENV,
            },
            "store": {
                "master": self.master.address,
                "segment_bytes": _SEGMENT_BYTES,
                "local_buffer_bytes": 32 * 2**20,
            },
            "prompts": {**self._prompts, "train_per_domain": None, "evaluate_per_domain": None},
            "stream": {
                "concurrency": 8,
                "max_new_tokens": 24,
                "in_flight_bytes": 16 * 2**20,
                "read_timeout_s": 5.0,
                # What is killed comes back only after the session: waiting for it would be in vain.
                "server_wait_s": 1.0,
                **stream,
            },
            "evaluate": {"replay_max_new_tokens": 24},
        }
        return load_profile("laptop", over).profile

    def run(self, name: str, **stream: Any) -> RunFolder:
        return create_run(self.folder / "runs", name, self.profile(**stream))

    def capture(self, run: RunFolder) -> CaptureManifest:
        """One session of the stream stage: attach, then capture what is missing."""
        self.launcher.started.clear()
        profile = run.profile()
        server = TargetServer(profile, run, self.launcher, SilentProgress())
        try:
            identity, endpoint = server.open()
            return capture(
                profile,
                run,
                stage_folder(run),
                endpoint,
                identity,
                resolve_target(profile),
                self.launcher,
                SilentProgress(),
                server.watch(),
            )
        finally:
            server.close()

    def left_in_store(self, run: RunFolder) -> int:
        """Objects whose key holds the run's name; removes them, so that one test's do not meet another."""
        with StoreClient(self.master.address) as store:
            return store.remove_matching(f".*{run.run_id}.*")

    def kill_at(self, moment: Moment, victim: str, run: RunFolder) -> threading.Thread:
        """Arm the moment; the thread ends when the victim is dead and the held request goes on."""
        (self.target.holds / f"{run.run_id}.hold").write_text(f"{moment.phase} {moment.count}")
        held = self.target.holds / f"{run.run_id}.held"

        def work() -> None:
            until(held.exists, 120, f"the moment '{moment.phase} {moment.count}' of {run.run_id}", 0.001)
            self.kill(victim)
            held.unlink()

        thread = threading.Thread(target=work)
        thread.start()
        return thread

    def kill(self, victim: str) -> None:
        """kill -9."""
        if victim == "client":
            handle = until(lambda: self.launcher.started.get("capture"), 60, "the client", 0.001)
            os.kill(handle.pid, signal.SIGKILL)
        elif victim == "target":
            self.target.kill()
        else:
            self.master.kill()

    def restart(self, victim: str) -> None:
        """What the operator of the servers does: a target without its master is started again, too."""
        if victim == "master":
            self.target.kill()
            self.master.start()
        if victim in ("master", "target"):
            self.target.start()

    def close(self) -> None:
        self.target.kill()
        self.master.kill()


def stage_folder(run: RunFolder) -> Path:
    return run.path / "03-stream"


def content_digest(run: RunFolder) -> str:
    """SHA-256 over ids, answers and tensors of every sample, each loaded and checked by the log's reader."""
    log = HiddenStateLog(stage_folder(run) / "log")
    digest = hashlib.sha256()
    for entry in sorted(log.entries(), key=lambda entry: entry.i):
        states, ids = log.load(entry)
        head = [entry.i, entry.prompt_id, entry.split, entry.prompt_tokens, list(entry.answer_ids)]
        digest.update(json.dumps(head).encode())
        digest.update(states.numpy().tobytes() + ids.numpy().tobytes())
    return digest.hexdigest()
