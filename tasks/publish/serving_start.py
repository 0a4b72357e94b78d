"""A draft served on this machine for as long as somebody asks it."""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tasks.errors import UsageError
from tasks.processes.launcher import LocalLauncher, ProcessSpec
from tasks.processes.ports import free_port
from tasks.processes.service import running
from tasks.publish.serving_here import here
from tasks.publish.serving_recipe import KEY, Recipe
from tasks.publish.serving_source import Served, recipe_of
from tasks.report.progress import Progress
from tasks.run_folder import RunFolder
from tasks.serve.arms import REQUEST_METRICS, knows_request_metrics
from tasks.serve.readiness import Limits, Wanted, wait_ready
from tasks.serve.target import start_limits
from tasks.serve.vllm_http import Server

HOST = "127.0.0.1"
_IDLE_S = 600.0
_GENERATION_S = 180.0
_NEAR = {"VLLM_HOST_IP": HOST, "GLOO_SOCKET_IFNAME": "lo"}


@contextmanager
def served_here(served: Served, target: str | None, progress: Progress) -> Iterator[Server]:
    """Serve a draft on loopback with a key of its own for the length of a `with` block.

    A published folder is served by its own `serve.sh`. The server reports acceptance by request where the
    engine can, so that rounds are known for certain.

    Raises:
        UsageError: The draft needs several nodes, or its target is not known.
        ServiceError: The server did not become ready; the end of its log is in the error.
    """
    port = free_port(HOST)
    recipe = recipe_of(served, target=target, port=port)
    key = secrets.token_urlsafe(32)
    argv, environment = _command(served, recipe)
    online = {} if recipe.target.folder and recipe.draft.folder else {"HF_HUB_OFFLINE": "0"}
    spec = ProcessSpec(
        name="asked",
        stage="serve",
        role="serve",
        argv=argv,
        env={**_NEAR, **online, **environment},
        secret_env={KEY: key},
        ports=(port,),
    )
    server = Server(f"http://{HOST}:{port}", recipe.served_name, key)
    wanted = Wanted(server, port, Path(recipe.target.here()), request_id="asked-ready", extraction=False)
    with tempfile.TemporaryDirectory(prefix="retrain-dspark-ask-") as folder:
        run = RunFolder(Path(folder))
        for part in (run.logs, run.services):
            part.mkdir(mode=0o700)
        with running(LocalLauncher(), spec, run) as handle:
            wait_ready(handle, wanted, _limits(served, recipe), progress)
            yield server


def _command(served: Served, recipe: Recipe) -> tuple[tuple[str, ...], dict[str, str]]:
    """Command line and environment, with acceptance reported by request."""
    reporting = REQUEST_METRICS if knows_request_metrics() else ()
    if not served.script:
        argv, environment = here(recipe, HOST)
        return (*argv, *reporting), environment
    folder = recipe.draft.folder
    if folder is None or recipe.nodes > 1:
        raise UsageError(
            f"{recipe.source} is served on {recipe.nodes} nodes, and this is one",
            where="deploy.nodes",
            hint="ask the server that runs: retrain-dspark ask QUESTION --url URL",
        )
    words = ("bash", str(folder / "serve.sh"), recipe.target.here(), str(recipe.port), *reporting)
    return words, {"HOST": HOST, "PYTHON": os.environ.get("PYTHON") or sys.executable}


def _limits(served: Served, recipe: Recipe) -> Limits:
    if served.profile is not None:
        return start_limits(served.profile)
    return Limits(recipe.ready_timeout_s, _IDLE_S, _GENERATION_S)
