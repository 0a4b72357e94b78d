"""The target while its hidden states are captured: store master and vLLM, or a server that already runs."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

from profiles.address import join_address
from profiles.schema import Profile
from tasks.plan.segment_space import refuse_samples_beyond_a_segment
from tasks.processes.group import start_together
from tasks.processes.launcher import Handle, Launcher, ProcessSpec
from tasks.report.progress import Progress
from tasks.run_folder import RunFolder
from tasks.serve.attach import attach
from tasks.serve.command import (
    CONNECTOR_CLASS,
    CONNECTOR_MODULE,
    engine_version,
    layer_ids,
    target_argv,
    target_environment,
    transport_of,
)
from tasks.serve.engine_needs import refuse_old_engine, refuse_unfit
from tasks.serve.models import TargetEndpoint, TargetIdentity
from tasks.serve.multi_node import across_nodes
from tasks.serve.readiness import Limits, Wanted, wait_ready
from tasks.serve.store_master import start_master
from tasks.serve.target_folder import (
    TargetConfig,
    check_target,
    model_digest,
    resolve_target,
    template_digest,
    tokenizer_digest,
)
from tasks.serve.vllm_http import Server
from tasks.serve.watchdog import ProgressWatchdog


class TargetServer:
    """The target of one run. `open()` starts it and waits until it is ready, `close()` ends it.

    With `serve.kind: attach` nothing is started and nothing is ended.
    """

    def __init__(self, profile: Profile, run: RunFolder, launcher: Launcher, progress: Progress) -> None:
        self._profile = profile
        self._run = run
        self._launcher = launcher
        self._progress = progress
        self._handles: list[Handle] = []
        self._server: Server | None = None

    def open(self) -> tuple[TargetIdentity, TargetEndpoint]:
        """Start (or attach to) the target; returns who it is and where it answers.

        Raises:
            UsageError: The target folder, a port or an argument of the profile cannot be used, or the largest
                sample could not lie in the store.
            ServiceError: A server did not become ready. Nothing that was started is left.
        """
        folder = resolve_target(self._profile)
        config = check_target(self._profile, folder)
        refuse_samples_beyond_a_segment(self._profile, config.hidden_size)
        if self._profile.serve.kind == "attach":
            engine, endpoint = attach(self._profile, folder)
            refuse_old_engine(self._profile, engine)
        else:
            engine = engine_version()
            refuse_unfit(self._profile, engine)
            endpoint = self._launch(folder, config)
        self._server = Server(endpoint.url, endpoint.served_name, endpoint.api_key)
        return target_identity(self._profile, folder, config, engine), endpoint

    def _launch(self, folder: Path, config: TargetConfig) -> TargetEndpoint:
        layers = layer_ids(self._profile, config.num_hidden_layers)
        target_argv(self._profile, folder, layers, 0, "")  # refuses bad arguments before anything starts
        place = self._launcher.place(self._profile, self._run, "serve", "serve")
        profile, serve = place.profile, place.profile.serve
        port = place.port(serve.host, serve.port, "serve.port")
        key = secrets.token_urlsafe(32)
        try:
            master, address = start_master(self._profile, self._run, self._launcher)
            self._handles.append(master)
            spec = ProcessSpec(
                name="target",
                stage="serve",
                role="serve",
                argv=target_argv(profile, folder, layers, port, address, transport_of(profile).address()),
                env=target_environment(profile),
                secret_env={"VLLM_API_KEY": key},
                ports=(port,),
            )
            meeting = place.port(serve.host) if len(place.nodes) > 1 else 0
            specs = across_nodes(spec, len(place.nodes), serve.host, meeting)
            handle = start_together(self._launcher, specs, self._run)
            self._handles.append(handle)
            server = Server(f"http://{join_address(serve.host, port)}", serve.served_name, key)
            wanted = Wanted(
                server,
                port,
                folder,
                request_id=ready_request_id(self._run.run_id),
                extraction=True,
                batch=min(self._profile.stream.concurrency, self._profile.serve.max_num_seqs),
            )
            wait_ready(handle, wanted, start_limits(self._profile), self._progress)
        except BaseException:
            self.close()
            raise
        return TargetEndpoint(
            url=server.url,
            served_name=server.served_name,
            api_key=key,
            store_master=address,
            store_host=profile.store.host,
        )

    def handles(self) -> tuple[Handle, ...]:
        """The store's master and the server, where this run started them."""
        return tuple(self._handles)

    def watch(self) -> Callable[[], None]:
        """A check of the open target: raises when it died or computes nothing for open requests."""
        if self._server is None:
            raise RuntimeError("the target is not open")
        handle = self._handles[-1] if self._handles else None
        return ProgressWatchdog(self._server, self._profile.serve.progress_timeout_s, handle).check

    def close(self) -> None:
        """End the server, then the store's master. May be called again, and without `open()`."""
        self._server = None
        while self._handles:
            self._handles.pop().stop()

    def __enter__(self) -> tuple[TargetIdentity, TargetEndpoint]:
        return self.open()

    def __exit__(self, *exception: object) -> None:
        self.close()


def ready_request_id(run_id: str) -> str:
    """Id of the readiness requests, but for their number; their samples stay in the store under keys that
    begin with it, until the capture client sweeps the run's."""
    return f"{run_id}-ready"


def start_limits(profile: Profile) -> Limits:
    serve = profile.serve
    return Limits(serve.ready_timeout_s, serve.ready_idle_s, serve.progress_timeout_s)


def target_identity(profile: Profile, folder: Path, config: TargetConfig, engine: str) -> TargetIdentity:
    """Who answers: equal for every start of the same target with the same settings."""
    layers = layer_ids(profile, config.num_hidden_layers)
    argv = target_argv(profile, folder, layers, port=0, master="")
    return TargetIdentity(
        served_name=profile.serve.served_name,
        model_digest=model_digest(folder),
        revision=profile.target.revision,
        architecture=config.architecture,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        vocab_size=config.vocab_size,
        dtype=profile.target.dtype,
        layer_ids=layers,
        tokenizer_digest=tokenizer_digest(folder),
        template_digest=template_digest(folder),
        engine=engine,
        connector=f"{CONNECTOR_MODULE}.{CONNECTOR_CLASS}",
        argv=("python", *argv[1:]) if profile.serve.kind == "launch" else (),
        tap_point=profile.target.tap_point,
    )
