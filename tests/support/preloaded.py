"""Python programs started as real processes that need not import their libraries again.

A fork server imports torch and the like once; each program is then a fork of it, with its own session, log,
environment and argv, and dies by `kill -9` as any process does. Tests that kill a program twenty times
would otherwise wait for imports most of the time.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import runpy
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

from profiles.schema import Profile
from tasks.processes.ending import MARKER
from tasks.processes.launcher import ProcessSpec
from tasks.processes.places import LocalPlace
from tasks.processes.ports import listening_pids
from tasks.run_folder import RunFolder

PRELOADED = (
    "torch",
    "transformers.models.auto.tokenization_auto",
    "transformers.tokenization_utils_tokenizers",
    "safetensors.torch",
    "mooncake.store",
    "hs_connectors.mooncake_store",
    "tasks.stream.capture",
    "tasks.stream.sealed",
)
_modules = list(PRELOADED)
_context = multiprocessing.get_context("forkserver")
_PR_SET_PDEATHSIG = 1


def preload(*modules: str) -> None:
    """Name further modules to import; counts only before the first program of this test process."""
    _modules.extend(modules)
    _context.set_forkserver_preload(_modules)


preload()


def start_program(argv: Sequence[str], log: Path, env: Mapping[str, str] = {}) -> BaseProcess:
    """Start `python <argv>`: a script's path or `-m module`, and its arguments."""
    process = _context.Process(target=_be_program, args=(tuple(argv), log, dict(env)))
    process.start()
    return process


def _be_program(argv: tuple[str, ...], log: Path, env: dict[str, str]) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    os.environ.update(env)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.close(output)
    if argv[0] == "-m":
        sys.argv = [argv[1], *argv[2:]]
        sys.modules.pop(argv[1], None)
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(argv)
        runpy.run_path(argv[0], run_name="__main__")


class PreloadedHandle:
    """What a launcher gives for a started process."""

    def __init__(self, spec: ProcessSpec, log: Path, process: BaseProcess):
        assert process.pid is not None
        self.spec, self.log, self.pid = spec, log, process.pid
        self._process = process

    def poll(self) -> int | None:
        return self._process.exitcode

    def listens_on(self, port: int) -> bool:
        return self.pid in listening_pids(port)

    def stop(self, grace_s: float | None = None) -> None:
        if self._process.is_alive():
            os.kill(self.pid, signal.SIGTERM)
            self._process.join(self.spec.grace_s if grace_s is None else grace_s)
        if self._process.is_alive():
            self._process.kill()
        self._process.join()

    def tail(self, lines: int = 25) -> list[str]:
        return self.log.read_text(errors="replace").splitlines()[-lines:] if self.log.exists() else []


class PreloadedLauncher:
    """A launcher of the product's specs, whose argv are `python -m module ...`.

    Attributes:
        started: Name -> handle of the newest process of that name.
    """

    def __init__(self) -> None:
        self.started: dict[str, PreloadedHandle] = {}

    def nodes(self, profile: object) -> tuple[()]:
        return ()

    def place(self, profile: Profile, run: RunFolder, stage: str, role: str) -> LocalPlace:
        return LocalPlace(profile)

    def close(self) -> None:
        """Holds nothing."""

    def start(self, spec: ProcessSpec, run: RunFolder) -> PreloadedHandle:
        assert spec.argv[0] == sys.executable, spec.argv
        log = run.logs / f"{spec.name}.log"
        env = {**spec.env, **spec.secret_env, MARKER: f"{run.run_id}/{spec.name}/{time.monotonic_ns()}"}
        handle = PreloadedHandle(spec, log, start_program(spec.argv[1:], log, env))
        self.started[spec.name] = handle
        return handle
