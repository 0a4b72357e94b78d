"""Arms of an evaluation: the target alone, or with one way to speculate, under otherwise equal settings."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from profiles.address import join_address
from profiles.schema import Profile
from profiles.serving import TapPoint
from tasks.processes.launcher import Handle, Launcher, ProcessSpec
from tasks.processes.service import running_together
from tasks.report.progress import Progress
from tasks.run_folder import RunFolder
from tasks.serve.command import dspark_speculative_config, engine_version, server_argv, server_environment
from tasks.serve.cpu import interpreter_environment
from tasks.serve.deaths import telling_deaths
from tasks.serve.engine_needs import refuse_unfit
from tasks.serve.multi_node import across_nodes
from tasks.serve.options import Node, runner_environment, tap_environment
from tasks.serve.readiness import Wanted, wait_ready
from tasks.serve.target import start_limits
from tasks.serve.vllm_http import Server

__all__ = [
    "TARGET_ALONE",
    "ArmEndpoint",
    "Runner",
    "Speculation",
    "arm_argv",
    "arm_environment",
    "draft_speculation",
    "dspark_speculative_config",
    "knows_request_metrics",
    "runner_for",
    "serve_arm",
]

Runner = Literal["v1", "v2"]
REQUEST_METRICS = ("--per-request-spec-decode-metrics", "detailed")
_ONLY_V1 = frozenset({"suffix", "medusa", "mlp_speculator", "custom_class"})
"""Methods without an implementation in vLLM's V2 model runner (`VllmConfig`, version 0.32)."""
_NOT_INTERPRETED = frozenset({"ngram", "[ngram]", "ngram_gpu"})
"""Methods whose V2 kernels Triton's interpreter refuses ("mask has unsupported dtype", Triton 3.7)."""


@dataclass(frozen=True)
class Speculation:
    """How a server drafts, and on which model runner; the defaults are the target alone."""

    config: Mapping[str, Any] | None = None
    """vLLM's speculative config; None drafts nothing."""
    runner: Runner = "v2"
    tap_point: TapPoint | None = None
    """Where the draft wants the target tapped; None is the profile's."""

    @property
    def method(self) -> str:
        """`none`, or the method's name in vLLM."""
        return "none" if self.config is None else str(self.config.get("method", "draft_model"))


TARGET_ALONE = Speculation()


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


def runner_for(method: str, interpreted: bool) -> Runner:
    """The model runner of an arm: V2, which DSpark needs, as far as the method supports it.

    Args:
        interpreted: Triton's kernels run in its interpreter, which does not know those of every method.
    """
    return "v1" if method in _ONLY_V1 or (interpreted and method in _NOT_INTERPRETED) else "v2"


def draft_speculation(profile: Profile, draft_dir: Path) -> Speculation:
    """Serve a DSpark draft with the profile's settings."""
    return Speculation(dspark_speculative_config(profile, str(draft_dir)))


def knows_request_metrics() -> bool:
    """Whether the installed engine reports acceptance in each response; read from its files, not imported."""
    spec = find_spec("vllm")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        options = Path(folder) / "config" / "observability.py"
        if options.is_file() and "per_request_spec_decode_metrics" in options.read_text(encoding="utf-8"):
            return True
    return False


def arm_argv(
    profile: Profile,
    target_dir: Path,
    port: int,
    speculation: Speculation = TARGET_ALONE,
    node: Node | None = None,
) -> tuple[str, ...]:
    """Command line of an arm; arms differ in what they draft with, and in nothing else.

    The engine refuses to report acceptance by request where nothing is drafted, so the plain arm lacks that
    option.
    """
    live = profile.evaluate.live
    further: tuple[str, ...] = ()
    if speculation.config is not None:
        reporting = REQUEST_METRICS if knows_request_metrics() else ()
        further = ("--speculative-config", json.dumps(dict(speculation.config)), *reporting)
    return server_argv(
        profile,
        model=target_dir,
        served_name=profile.serve.served_name,
        port=port,
        dtype=live.dtype,
        max_num_seqs=live.max_num_seqs,
        further=further,
        node=node,
    )


def arm_environment(
    profile: Profile, runner: Runner = "v2", tap_point: TapPoint | None = None
) -> dict[str, str]:
    """Environment of an arm: the same runner with and without a draft, so that outputs can be compared.

    The V1 runner has ordinary CPU kernels, so nothing is interpreted there.
    """
    interpreted = profile.evaluate.live.triton_interpreter and runner == "v2"
    interpreter = interpreter_environment() if interpreted else {}
    return {
        **server_environment(profile),
        **tap_environment(tap_point),
        **runner_environment(runner),
        **interpreter,
    }


@contextmanager
def serve_arm(
    profile: Profile,
    run: RunFolder,
    launcher: Launcher,
    *,
    name: str,
    target_dir: Path,
    speculation: Speculation,
    progress: Progress,
) -> Iterator[ArmEndpoint]:
    """Serve one arm for the length of a `with` block. One at a time: two would share the machine.

    Args:
        name: Process name, e.g. `arm-plain`.
        speculation: What it drafts with, and the runner.

    Raises:
        ServiceError: It did not become ready; the end of its log is in the error.
    """
    refuse_unfit(profile, engine_version())
    place = launcher.place(profile, run, "evaluate", "serve")
    profile, host = place.profile, place.profile.serve.host
    port = place.port(host)
    key = secrets.token_urlsafe(32)
    spec = ProcessSpec(
        name=name,
        stage="evaluate",
        role="serve",
        argv=arm_argv(profile, target_dir, port, speculation),
        env=arm_environment(profile, speculation.runner, speculation.tap_point),
        secret_env={"VLLM_API_KEY": key},
        ports=(port,),
    )
    server = Server(f"http://{join_address(host, port)}", profile.serve.served_name, key)
    wanted = Wanted(server, port, target_dir, request_id=f"{run.run_id}-{name}-ready", extraction=False)
    meeting = place.port(host) if len(place.nodes) > 1 else 0
    with running_together(launcher, across_nodes(spec, len(place.nodes), host, meeting), run) as handle:
        wait_ready(handle, wanted, start_limits(profile), progress)
        with telling_deaths(lambda: [handle]):
            yield ArmEndpoint(
                url=server.url,
                served_name=server.served_name,
                api_key=key,
                argv=("python", *arm_argv(profile, target_dir, 0, speculation)[1:]),
                engine=engine_version(),
                handle=handle,
            )
