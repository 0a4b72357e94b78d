"""`retrain-dspark ui` in a copy of the checkout, as a user starts it: server, MLflow's page and work pool."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from observing import until

from tasks.processes.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
STUB = ROOT / "tests" / "fakes" / "stubbed_cli.py"
INSTALL_STUBS = f"""

import importlib.util as _util

_spec = _util.spec_from_file_location("stubbed_cli", {str(STUB)!r})
_stubs = _util.module_from_spec(_spec)
_spec.loader.exec_module(_stubs)
_stubs.install()
"""


@dataclass(frozen=True)
class Pages:
    """What `retrain-dspark ui` serves, and where.

    Args:
        api: Address of Prefect's API.
        checkout: Copy of the packages whose flow has small stages, with `prefect.yaml`.
        root: Run root of the checkout's runs.
        env: Environment of every command in the checkout.
    """

    api: str
    mlflow: str
    checkout: Path
    root: Path
    env: dict[str, str]

    def call(self, *words: str, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment in the checkout."""
        return subprocess.run(
            (str(BIN / words[0]), *words[1:]),
            cwd=self.checkout,
            env=self.env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
        )


def copy_checkout(folder: Path, small_stages: bool) -> None:
    """Copy what a deployment needs."""
    for package in ("flows", "tasks", "profiles"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "prefect.yaml"):
        shutil.copy(ROOT / name, folder / name)
    if small_stages:
        with open(folder / "flows" / "retrain_dspark.py", "a", encoding="utf-8") as stream:
            stream.write(INSTALL_STUBS)


@contextmanager
def served(checkout: Path, small_stages: bool) -> Iterator[Pages]:
    """Copy the checkout, serve its pages, and end them by Ctrl-C."""
    copy_checkout(checkout, small_stages)
    ports = (free_port("127.0.0.1"), free_port("127.0.0.1"))
    env = _environment(checkout)
    words = ("ui", "--prefect-port", str(ports[0]), "--mlflow-port", str(ports[1]))
    output = checkout / "ui.txt"
    process = background(("retrain-dspark", *words), checkout, env, output)
    try:
        until(lambda: "Ctrl-C" in output.read_text() or process.poll() is not None, 240, "the ui")
        if process.poll() is not None:
            raise RuntimeError(output.read_text())
        api = f"http://127.0.0.1:{ports[0]}/api"
        env["PREFECT_API_URL"] = api
        yield Pages(api, f"http://127.0.0.1:{ports[1]}", checkout, checkout / "runs", env)
    finally:
        interrupt(process)


@contextmanager
def working(pages: Pages) -> Iterator[Pages]:
    """Deploy as documented and run a worker; it is interrupted at the end."""
    done = pages.call("prefect", "--no-prompt", "deploy", "--all")
    if done.returncode != 0:
        raise RuntimeError(done.stdout)
    words = ("prefect", "worker", "start", "--pool", "retrain-dspark")
    process = background(words, pages.checkout, pages.env, pages.checkout / "worker.txt")
    try:
        yield pages
    finally:
        interrupt(process)


def background(
    words: tuple[str, ...], folder: Path, env: dict[str, str], output: Path
) -> subprocess.Popen[bytes]:
    """Start a program of the environment in its own session, with its output in a file."""
    with open(output, "wb") as stream:
        return subprocess.Popen(
            (str(BIN / words[0]), *words[1:]),
            cwd=folder,
            env=env,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def interrupt(process: subprocess.Popen[bytes], wait_s: float = 60) -> None:
    """Ctrl-C; its whole group is killed if that does not end it."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(wait_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _environment(checkout: Path) -> dict[str, str]:
    inherited = {n: v for n, v in os.environ.items() if not n.startswith(("PREFECT_", "MLFLOW_"))}
    return {
        **inherited,
        "PYTHONPATH": str(checkout),
        "RETRAIN_DSPARK_RUNS": str(checkout / "runs"),
        "PREFECT_HOME": str(checkout / "prefect"),
        "PREFECT_WORKER_QUERY_SECONDS": "1",
        "STUB_FILE": str(checkout / "stub.json"),
        "STUB_TRACE": str(checkout / "trace"),
    }
