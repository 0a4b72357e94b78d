"""Prefect's API for one command: the user's server, else a temporary one that ends with the command."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from filelock import FileLock

from tasks.errors import ServiceError
from tasks.processes.ports import free_port
from tasks.run_folder import run_root

READY_S = 240.0
"""A server of our own on a busy machine; it is one process with a database to make."""
ANSWER_S = 15.0
"""A server that the user named: it runs, or it does not."""
SEND_S = 10.0


_own: dict[str, subprocess.Popen[bytes]] = {}


@contextmanager
def prefect_api() -> Iterator[str]:
    """Address of Prefect's API; a temporary server ends on every way out, also when we are killed."""
    known = os.environ.get("PREFECT_API_URL")
    if known:
        yield known
        return
    port = free_port("127.0.0.1")
    url = f"http://127.0.0.1:{port}/api"
    process = _own[url] = _start(port)
    try:
        os.environ["PREFECT_API_URL"] = url
        yield url
    finally:
        os.environ.pop("PREFECT_API_URL", None)
        _own.pop(url, None)
        _end(process)


def wait_until_ready(url: str, deadline_s: float | None = None) -> None:
    """Return when the API answers.

    Args:
        deadline_s: None waits as fits: long for a server of our own, short for one that the user named.

    Raises:
        ServiceError: It does not within the deadline, or our own server has ended.
    """
    own = _own.get(url)
    wait_s = deadline_s or (READY_S if own else ANSWER_S)
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline and (own is None or own.poll() is None):
        try:
            if httpx.get(f"{url}/health", timeout=2).status_code == 200:
                return
        except (httpx.HTTPError, httpx.InvalidURL):
            pass
        time.sleep(0.1)
    if own is None:
        hint = "start that server, or unset PREFECT_API_URL to use a temporary one"
    else:
        hint = f"see {_log_path()}"
    raise ServiceError(
        f"Prefect's API did not answer within {wait_s:.0f} s", where=f"PREFECT_API_URL: {url}", hint=hint
    )


@contextmanager
def starting_alone() -> Iterator[None]:
    """Held while a server starts: it migrates its database, and two that do so at once break it."""
    from prefect.settings import PREFECT_HOME

    home: Path = PREFECT_HOME.value()
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    with FileLock(home / ".starting.lock", timeout=READY_S):
        yield


def send_what_waits(within_s: float = SEND_S) -> None:
    """Let Prefect send its waiting events and logs while the API still answers, then let the process end.

    At exit Prefect waits for them without a bound, also for a server that has ended meanwhile.
    """
    from prefect._internal.concurrency.services import _QueueServiceBase as Services

    services: dict[int, Any] = Services._instances  # type: ignore[misc]
    waiting = [service for service in services.values() if service._loop is not None]
    Services.drain_all(timeout=within_s)
    for service in waiting:
        event, loop = service._done_event, service._loop
        if event is not None and loop is not None and not event.is_set():
            loop.call_soon_threadsafe(event.set)


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
    import prefect.settings  # noqa: F401  # outside the server's loop, in which it cannot load plugins
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            with starting_alone():
                await super().startup(sockets)

    app = "prefect.server.api.server:create_app"
    Server(uvicorn.Config(app, factory=True, host="127.0.0.1", port=port, log_level="error")).run()


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]))
