"""`retrain-dspark ui`: Prefect's and MLflow's pages on loopback, and the work pool for deployments."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from types import FrameType
from typing import NoReturn

import click

from flows.cli.prefect_server import READY_S, starting_alone, wait_until_ready
from tasks.errors import EXIT_INTERRUPTED, ServiceError
from tasks.processes.ports import require_free
from tasks.redaction import redact
from tasks.run_folder import private_run_root, run_root
from tasks.tracking import mlflow_client, tracking_uri

POOL = "retrain-dspark"
HOST = "127.0.0.1"
_LOGS = "see the logs in {}/.ui"


@click.command("ui")
@click.option("--prefect-port", default=4200, show_default=True, help="Port of Prefect's page and API.")
@click.option("--mlflow-port", default=5001, show_default=True, help="Port of MLflow's page.")
@click.option("--worker/--no-worker", default=False, help="Also start a worker and deploy the flow.")
def command(prefect_port: int, mlflow_port: int, worker: bool) -> int:
    """Start Prefect and MLflow on loopback, make the work pool, and stay until Ctrl-C."""
    private_run_root()
    require_free(HOST, prefect_port, "--prefect-port")
    mlflow_page = tracking_uri(run_root())
    if own_mlflow := not mlflow_page.startswith(("http://", "https://")):
        require_free(HOST, mlflow_port, "--mlflow-port")
        mlflow_page = f"http://{HOST}:{mlflow_port}"
    signal.signal(signal.SIGTERM, _terminated)
    url = f"http://{HOST}:{prefect_port}/api"
    os.environ["PREFECT_API_URL"] = url
    started: list[subprocess.Popen[bytes]] = []
    try:
        with starting_alone():
            started.append(_start("prefect", "server", "start", "--host", HOST, "--port", str(prefect_port)))
            if own_mlflow:
                started.append(_start_mlflow(mlflow_port))
            wait_until_ready(url, READY_S)
        make_pool()
        click.echo(f"Prefect: http://{HOST}:{prefect_port}\nMLflow:  {redact(mlflow_page)}")
        click.echo(f"In another terminal:\n  export PREFECT_API_URL={url}")
        if worker:
            _prefect("--no-prompt", "deploy", "--all")
            started.append(_start("prefect", "worker", "start", "--pool", POOL))
        else:
            click.echo(f"  prefect --no-prompt deploy --all\n  prefect worker start --pool {POOL}")
        click.echo("  prefect deployment run retrain-dspark\nCtrl-C ends these pages.")
        return _watch(started)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    finally:
        for process in reversed(started):
            _end(process)


def make_pool() -> None:
    """Make the process work pool of the deployments, or keep the one that exists."""
    _prefect("work-pool", "create", POOL, "--type", "process", "--overwrite")


def _prefect(*words: str) -> None:
    """Run a command of Prefect's to its end.

    Raises:
        ServiceError: It fails or does not end; its output is in the error.
    """
    argv = (sys.executable, "-m", "prefect", *words)
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=READY_S)
    except subprocess.TimeoutExpired as error:
        raise ServiceError(
            f"'prefect {' '.join(words)}' did not end within {READY_S:.0f} s", hint=_LOGS.format(run_root())
        ) from error
    if done.returncode:
        lines = (done.stdout + done.stderr).splitlines()
        raise ServiceError(
            f"'prefect {' '.join(words)}' ended with status {done.returncode}",
            hint=_LOGS.format(run_root()),
            log_tail=tuple(lines[-8:]),
        )


def _start(*words: str) -> subprocess.Popen[bytes]:
    """Start a Prefect process in its own session, with its log in the run root."""
    return _spawn(words[1], (sys.executable, "-m", *words), {})


def _start_mlflow(port: int) -> subprocess.Popen[bytes]:
    root = run_root()
    mlflow_client(root)  # the database is made under its lock, not by the server
    argv = (
        *(sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port), "--workers", "1"),
        *("--backend-store-uri", tracking_uri(root), "--default-artifact-root", str(root / "mlartifacts")),
    )
    return _spawn("mlflow", argv, {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"})


def _spawn(name: str, argv: tuple[str, ...], env: dict[str, str]) -> subprocess.Popen[bytes]:
    log = run_root() / ".ui" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(log, "ab") as output:
        return subprocess.Popen(
            argv,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _watch(started: list[subprocess.Popen[bytes]]) -> int:
    """Stay until one of them ends."""
    while True:
        for process in started:
            if process.poll() is not None:
                raise ServiceError(
                    f"'{' '.join(map(str, process.args[2:5]))}' ended with status {process.returncode}",  # type: ignore[index]
                    hint=_LOGS.format(run_root()),
                )
        time.sleep(1)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process with its group: both servers start workers of their own."""
    for number, wait_s in ((signal.SIGTERM, 8.0), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(process.pid, number)
            process.wait(wait_s)
            return
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
