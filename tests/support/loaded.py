"""Servers of `fakes/loaded_server.py` for a `with` block, and a launcher with a quick load generator."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from tasks.processes.launcher import LocalHandle, LocalLauncher, ProcessSpec
from tasks.processes.ports import free_port
from tasks.run_folder import RunFolder

FAKES = Path(__file__).resolve().parents[1] / "fakes"


@dataclass(frozen=True)
class Running:
    """A server that answers, as an endpoint."""

    url: str
    process: subprocess.Popen[bytes]
    served_name: str = "m"
    api_key: str | None = None


@contextmanager
def loaded_server(*options: str, key: str | None = None) -> Iterator[Running]:
    port = free_port("127.0.0.1")
    argv = (sys.executable, str(FAKES / "loaded_server.py"), "--port", str(port), *options)
    environment = {"PATH": "/usr/bin:/bin", **({"VLLM_API_KEY": key} if key else {})}
    process = subprocess.Popen(argv, env=environment)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(url, process)
        yield Running(url, process, api_key=key)
    finally:
        process.kill()
        process.wait()


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    with httpx.Client(trust_env=False) as client:
        while process.poll() is None:
            try:
                client.get(f"{url}/health")
                return
            except httpx.HTTPError:
                time.sleep(0.02)
    raise AssertionError("the server ended")


class QuickGenerator(LocalLauncher):
    """Starts `fakes/load_generator.py` where vLLM's benchmark is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[str] = []

    def start(self, spec: ProcessSpec, run: RunFolder) -> LocalHandle:
        self.started.append(spec.name)
        words = list(spec.argv)
        if "tasks.evaluate.load.benchmark" in words:
            at = words.index("-m")
            words[at : at + 2] = [str(FAKES / "load_generator.py")]
        return super().start(replace(spec, argv=tuple(words)), run)
