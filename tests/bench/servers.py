"""Servers of the stream rows: the target with our connector, plain, or with upstream's own connector.

One at a time, since each takes the machine's memory bandwidth and 4 to 6 GiB. What differs between them is
the connector and nothing else: model, type, lengths and batch sizes come from the same profile.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from profiles.load import load_profile
from profiles.schema import Profile
from tasks.errors import JobError, ServiceError
from tasks.processes.guard import close_registry
from tasks.processes.launcher import LocalLauncher, ProcessSpec
from tasks.processes.ports import free_port
from tasks.processes.service import running
from tasks.report.progress import SilentProgress
from tasks.run_folder import RunFolder, create_run
from tasks.serve.command import (
    extraction_config,
    layer_ids,
    server_argv,
    server_environment,
    transfer_config,
)
from tasks.serve.models import TargetEndpoint, TargetIdentity
from tasks.serve.readiness import Wanted, wait_ready
from tasks.serve.store_master import start_master
from tasks.serve.target import TargetServer, start_limits
from tasks.serve.target_config import read_target_config
from tasks.serve.target_folder import resolve_target
from tasks.serve.vllm_http import Server
from tasks.stream.core import capture
from tasks.stream.models import CaptureManifest

BENCH = Path(__file__).resolve().parent
PATIENCE: dict[str, dict[str, Any]] = {
    "serve": {"ready_timeout_s": 3600, "ready_idle_s": 1800, "progress_timeout_s": 1800},
    "train": {"stall_timeout_s": 1800},
}
"""A measurement on a busy machine takes longer; that is no reason to end it. Fields of a profile, seconds."""
_POLL_S = 0.2


@dataclass(frozen=True)
class Workplace:
    """A run folder for one row: profile, target and how processes are started."""

    profile: Profile
    run: RunFolder
    target: Path
    launcher: LocalLauncher = field(default_factory=LocalLauncher)


def patient(overrides: dict[str, Any]) -> Profile:
    """The laptop profile with `overrides` and with limits for a busy machine."""
    fields = {
        name: {**PATIENCE.get(name, {}), **values} for name, values in {**PATIENCE, **overrides}.items()
    }
    return load_profile("laptop", fields).profile


@contextmanager
def workplace(folder: Path, name: str, overrides: dict[str, Any]) -> Iterator[Workplace]:
    """The laptop profile with `overrides` and a run folder of its own; nothing stays running."""
    profile = patient(overrides)
    run = create_run(folder / "runs", name, profile)
    try:
        yield Workplace(profile, run, resolve_target(profile))
    finally:
        close_registry(run.services)


@dataclass(frozen=True)
class Extracting:
    """Our target, open."""

    place: Workplace
    identity: TargetIdentity
    endpoint: TargetEndpoint
    watch: Callable[[], None]

    @property
    def server(self) -> Server:
        return Server(self.endpoint.url, self.endpoint.served_name, self.endpoint.api_key)

    def capture(self, folder: Path) -> CaptureManifest:
        """The stream stage's own work: capture every prompt of the profile into `folder`."""
        return capture(
            self.place.profile,
            self.place.run,
            folder,
            self.endpoint,
            self.identity,
            self.place.target,
            self.place.launcher,
            SilentProgress(),
            self.watch,
        )


@contextmanager
def extracting(place: Workplace) -> Iterator[Extracting]:
    """The target as the pipeline starts it for a capture, with its store."""
    target = TargetServer(place.profile, place.run, place.launcher, SilentProgress())
    try:
        identity, endpoint = target.open()
        yield Extracting(place, identity, endpoint, target.watch())
    finally:
        target.close()


@contextmanager
def plain(place: Workplace, served_name: str, max_num_seqs: int | None = None) -> Iterator[Server]:
    """The same server without extraction and without a store."""
    with _serving(place, "plain", served_name, max_num_seqs, (), {}) as server:
        yield server


@contextmanager
def upstream_extracting(place: Workplace, served_name: str) -> Iterator[tuple[Server, str]]:
    """The same server with upstream's connector as it is (on CPU: with streams that do nothing).

    Yields the server and its store's master as `host:port`.
    """
    layers = layer_ids(place.profile, read_target_config(place.target).num_hidden_layers)
    master, address = start_master(place.profile, place.run, place.launcher, "upstream-master")
    transfer = {
        **transfer_config(place.profile, address),
        "kv_connector": "UpstreamConnector",
        "kv_connector_module_path": "upstream_connector",
    }
    further = (
        "--speculative-config", json.dumps(extraction_config(layers)),
        "--kv-transfer-config", json.dumps(transfer),
    )  # fmt: skip
    try:
        env = {"PYTHONPATH": str(BENCH)}
        with _serving(place, "upstream-target", served_name, None, further, env) as server:
            yield server, address
    finally:
        master.stop()


@contextmanager
def _serving(
    place: Workplace,
    name: str,
    served_name: str,
    max_num_seqs: int | None,
    further: Sequence[str],
    env: dict[str, str],
) -> Iterator[Server]:
    profile = place.profile
    port = free_port(profile.serve.host)
    argv = server_argv(
        profile,
        model=place.target,
        served_name=served_name,
        port=port,
        dtype=profile.target.dtype,
        max_num_seqs=max_num_seqs or profile.serve.max_num_seqs,
        further=further,
    )
    spec = ProcessSpec(
        name, "serve", "serve", argv, env={**server_environment(profile), **env}, ports=(port,)
    )
    server = Server(f"http://{profile.serve.host}:{port}", served_name)
    with running(place.launcher, spec, place.run) as handle:
        wanted = Wanted(server, port, place.target, request_id=f"{name}-ready", extraction=bool(further))
        wait_ready(handle, wanted, start_limits(profile), SilentProgress())
        yield server


def finish(place: Workplace, name: str, argv: Sequence[str], env: dict[str, str], limit_s: float) -> float:
    """Run a program to its end; return its seconds from start to exit.

    Raises:
        JobError: It failed or did not end within `limit_s`; with the end of its log.
    """
    spec = ProcessSpec(name, "train", "train", tuple(argv), env=env)
    started = time.monotonic()
    with running(place.launcher, spec, place.run) as handle:
        while (status := handle.poll()) is None:
            if time.monotonic() - started > limit_s:
                raise JobError(
                    f"{name} did not end within {limit_s:.0f} s",
                    where=str(handle.log),
                    log_tail=handle.tail(),
                )
            time.sleep(0.05)
        seconds = time.monotonic() - started
        if status != 0:
            raise JobError(
                f"{name} ended with status {status}", where=str(handle.log), log_tail=handle.tail()
            )
    return seconds


def counter(text: str, name: str) -> float:
    """Sum of a metric over all engines on a Prometheus page; 0 where the page has no such metric.

    Only its own lines are parsed: a whole page takes long enough to disturb what is measured.
    """
    lines = "".join(line + "\n" for line in text.splitlines() if line.startswith(name))
    families = text_string_to_metric_families(lines)
    return sum(s.value for family in families for s in family.samples if s.name == name)


@dataclass(frozen=True)
class TargetTokens:
    """What a server counted since it started."""

    prompt: int
    generated: int

    @property
    def total(self) -> int:
        return self.prompt + self.generated


def target_tokens(server: Server) -> TargetTokens:
    text = server.metrics()
    return TargetTokens(
        int(counter(text, "vllm:prompt_tokens_total")), int(counter(text, "vllm:generation_tokens_total"))
    )


class Busy:
    """Watches a server in a thread: when its requests ran, and for how long any did.

    Args:
        more_than: Requests that may run before those that are measured: the canary's.
        poll_s: Pause between two looks; each costs the server a few milliseconds.

    Attributes:
        began: `time.time()` at which more requests than that were first seen running; None before.
        seconds: Seconds in which at least one request was running, to the poll.
    """

    def __init__(self, server: Server, more_than: int = 0, poll_s: float = _POLL_S) -> None:
        self._server = server
        self._poll_s = poll_s
        self._more_than = more_than
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.began: float | None = None
        self.seconds = 0.0

    def __enter__(self) -> Busy:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        last, was_running = time.time(), False
        while not self._stop.wait(self._poll_s):
            try:
                running_now = counter(self._server.metrics(), "vllm:num_requests_running")
            except ServiceError:  # the page is late on a loaded machine; the next poll covers this time
                continue
            now = time.time()
            if running_now > self._more_than and self.began is None:
                self.began = now
            self.seconds += (now - last) * (was_running or running_now > 0)
            last, was_running = now, running_now > 0
