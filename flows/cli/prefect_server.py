"""Prefect's API for one command: the user's server, else a temporary one that ends with the command."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tasks.errors import ServiceError
from tasks.processes.ports import free_port
from tasks.run_folder import run_root

READY_S = 240.0


@contextmanager
def prefect_api() -> Iterator[str]:
    """Address of Prefect's API; a temporary server ends on every way out, also when we are killed."""
    known = os.environ.get("PREFECT_API_URL")
    if known:
        yield known
        return
    port = free_port("127.0.0.1")
    url = f"http://127.0.0.1:{port}/api"
    process = _start(port)
    try:
        os.environ["PREFECT_API_URL"] = url
        yield url
    finally:
        os.environ.pop("PREFECT_API_URL", None)
        _end(process)


def wait_until_ready(url: str, deadline_s: float = READY_S) -> None:
    """Return when the API answers.

    Raises:
        ServiceError: It does not within the deadline.
    """
    deadline = time.monotonic() + deadline_s
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/health", timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    raise ServiceError(
        f"Prefect's API did not answer within {deadline_s:.0f} s", where=url, hint=f"see {_log_path()}"
    )


def _start(port: int) -> subprocess.Popen[bytes]:
    path = _log_path()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(path, "ab") as output:
        return subprocess.Popen(
            (sys.executable, "-m", "flows.cli.prefect_server", str(os.getpid()), str(port)),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _log_path() -> Path:
    return run_root() / ".prefect" / "server.log"


def _serve(parent: int, port: int) -> None:
    """The child: serve the API until the parent ends it or dies."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no server without its command
    if os.getppid() != parent:
        return
    os.environ["PREFECT_UI_ENABLED"] = "0"
    import uvicorn

    uvicorn.run(
        "prefect.server.api.server:create_app", factory=True, host="127.0.0.1", port=port, log_level="error"
    )


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]))
