"""Arms of an evaluation: the target alone, or the target with a DSpark draft, under equal settings."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from profiles.address import join_address
from profiles.schema import Profile
from tasks.processes.launcher import Handle, Launcher, ProcessSpec
from tasks.processes.ports import free_port
from tasks.processes.service import running
from tasks.report.progress import Progress
from tasks.run_folder import RunFolder
from tasks.serve.command import dspark_speculative_config, engine_version, server_argv, server_environment
from tasks.serve.cpu import interpreter_environment
from tasks.serve.deaths import telling_deaths
from tasks.serve.readiness import Wanted, wait_ready
from tasks.serve.target import start_limits
from tasks.serve.vllm_http import Server

__all__ = ["ArmEndpoint", "arm_argv", "arm_environment", "dspark_speculative_config", "serve_arm"]


@dataclass(frozen=True)
class ArmEndpoint:
    """A live arm. Never persisted: it holds the key."""

    url: str
    served_name: str
    api_key: str = field(repr=False)
    argv: tuple[str, ...]
    """Command line without port."""
    engine: str
    handle: Handle = field(repr=False)


def arm_argv(profile: Profile, target_dir: Path, draft_dir: Path | None, port: int) -> tuple[str, ...]:
    """Command line of an arm; the two arms differ in the speculative config only."""
    live = profile.evaluate.live
    draft = () if draft_dir is None else (
        "--speculative-config", json.dumps(dspark_speculative_config(profile, str(draft_dir))),
    )  # fmt: skip
    return server_argv(
        profile,
        model=target_dir,
        served_name=profile.serve.served_name,
        port=port,
        dtype=live.dtype,
        max_num_seqs=live.max_num_seqs,
        further=draft,
    )


def arm_environment(profile: Profile) -> dict[str, str]:
    """Environment of an arm: the same runner with and without a draft, so that outputs can be compared."""
    interpreter = interpreter_environment() if profile.evaluate.live.triton_interpreter else {}
    return {**server_environment(profile), "VLLM_USE_V2_MODEL_RUNNER": "1", **interpreter}


@contextmanager
def serve_arm(
    profile: Profile,
    run: RunFolder,
    launcher: Launcher,
    *,
    name: str,
    target_dir: Path,
    draft_dir: Path | None,
    progress: Progress,
) -> Iterator[ArmEndpoint]:
    """Serve one arm for the length of a `with` block. One at a time: two would share the machine.

    Args:
        name: Process name, e.g. `arm-plain`.
        draft_dir: Draft in Speculators format; None serves the target alone.

    Raises:
        ServiceError: It did not become ready; the end of its log is in the error.
    """
    host = profile.serve.host
    port = free_port(host)
    key = secrets.token_urlsafe(32)
    argv = arm_argv(profile, target_dir, draft_dir, port)
    spec = ProcessSpec(
        name=name,
        stage="evaluate",
        role="serve",
        argv=argv,
        env=arm_environment(profile),
        secret_env={"VLLM_API_KEY": key},
        ports=(port,),
    )
    server = Server(f"http://{join_address(host, port)}", profile.serve.served_name, key)
    wanted = Wanted(server, port, target_dir, request_id=f"{run.run_id}-{name}-ready", extraction=False)
    with running(launcher, spec, run) as handle:
        wait_ready(handle, wanted, start_limits(profile), progress)
        with telling_deaths(lambda: [handle]):
            yield ArmEndpoint(
                url=server.url,
                served_name=server.served_name,
                api_key=key,
                argv=("python", *arm_argv(profile, target_dir, draft_dir, 0)[1:]),
                engine=engine_version(),
                handle=handle,
            )
