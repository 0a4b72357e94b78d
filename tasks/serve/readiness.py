"""When is a server ready? When the process that answers is ours, and has really generated something.

Also at the number of requests that the run will have open: a kernel for large batches may hang, or memory be
too small for them, while single requests are answered.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tasks.errors import PortInUse, ServiceError
from tasks.processes.launcher import Handle
from tasks.processes.ports import port_holder
from tasks.report.progress import Progress
from tasks.serve.log_causes import service_error
from tasks.serve.vllm_http import Server

_POLL_S = 0.25
_NOTE_EVERY_S = 5.0
_CAUSE_LINES = 400


@dataclass(frozen=True)
class Limits:
    """How long to wait, seconds."""

    ready_s: float
    """From start to the first real answer."""
    idle_s: float
    """Silence of the log; a server that shows progress gets the whole `ready_s`."""
    generation_s: float
    """For the first generation, once the server says that it is healthy, and again for the working batch."""


@dataclass(frozen=True)
class Wanted:
    """What must answer."""

    server: Server
    port: int
    model: Path
    request_id: str
    extraction: bool
    batch: int = 1
    """Requests that the engine will run at once: what the run has open, and no more than it takes."""


def wait_ready(handle: Handle, wanted: Wanted, limits: Limits, progress: Progress) -> float:
    """Wait until the server is ready; returns the seconds since this was called.

    Raises:
        PortInUse: Another program answers on the port.
        ServiceError: It died, was silent or slow for too long, serves another model, or cannot generate,
            alone or at the working batch size.
    """
    started = noted = time.monotonic()
    silence = _Silence(handle.log)
    while True:
        now = time.monotonic()
        _require_alive(handle)
        if wanted.server.is_healthy():
            require_ours(handle, wanted.port)
            _require_model(wanted)
            remaining_s = max(limits.ready_s - (now - started), 1.0)
            _first_generation(handle, wanted, min(limits.generation_s, remaining_s))
            _working_batch(handle, wanted, limits.generation_s)
            return time.monotonic() - started
        _require_time(handle, now - started, silence.seconds(now), limits)
        if now - noted >= _NOTE_EVERY_S:
            noted = now
            note = f"{handle.spec.name} is starting, {now - started:.0f} s (limit {limits.ready_s:.0f} s)"
            progress.update(done=round(now - started), total=None, unit="s", note=note)
        time.sleep(_POLL_S)


class _Silence:
    """How long a log file has not grown."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._size = -1
        self._since = time.monotonic()

    def seconds(self, now: float) -> float:
        size = self._log.stat().st_size if self._log.exists() else 0
        if size != self._size:
            self._size, self._since = size, now
        return now - self._since


def _require_alive(handle: Handle) -> None:
    status = handle.poll()
    if status is not None:
        how = f"ended with exit status {status}" if status >= 0 else f"was ended by signal {-status}"
        raise service_error(
            handle.spec.name, f"{how} while it started", str(handle.log), handle.tail(_CAUSE_LINES)
        )


def _require_time(handle: Handle, elapsed_s: float, silent_s: float, limits: Limits) -> None:
    name, log = handle.spec.name, str(handle.log)
    if elapsed_s > limits.ready_s:
        raise ServiceError(
            f"{name} was not ready after {elapsed_s:.0f} s",
            where=f"serve.ready_timeout_s; log: {log}",
            hint="raise serve.ready_timeout_s if its log still shows progress",
            log_tail=handle.tail(),
        )
    if silent_s > limits.idle_s:
        raise ServiceError(
            f"{name} is not ready and its log has been silent for {silent_s:.0f} s",
            where=f"serve.ready_idle_s; log: {log}",
            hint="see the log; raise serve.ready_idle_s if this model really loads that long without a word",
            log_tail=handle.tail(),
        )


def require_ours(handle: Handle, port: int) -> None:
    """Refuse a port on which a process answers that does not belong to `handle`'s session."""
    if handle.listens_on(port):
        return
    raise PortInUse(
        f"port {port} is in use by another process: {port_holder(port)}",
        where=handle.spec.name,
        hint="end that program, or let the profile take a free port (0)",
    )


def _require_model(wanted: Wanted) -> None:
    served = wanted.server.models()
    name = wanted.server.served_name
    if name not in served:
        raise ServiceError(
            f"the server serves {', '.join(sorted(served)) or 'nothing'}, not '{name}'",
            where=wanted.server.url,
        )
    if served[name] and served[name] != str(wanted.model):
        raise ServiceError(f"'{name}' is {served[name]} there, not {wanted.model}", where=wanted.server.url)


def _first_generation(handle: Handle, wanted: Wanted, timeout_s: float) -> None:
    try:
        wanted.server.generate(timeout_s, wanted.request_id, wanted.extraction)
    except ServiceError as error:
        _require_alive(handle)
        raise ServiceError(
            f"{handle.spec.name}: {error.what}",
            where=f"{error.where}; log: {handle.log}",
            hint=error.hint,
            log_tail=handle.tail(),
        ) from error


def _working_batch(handle: Handle, wanted: Wanted, timeout_s: float) -> None:
    """As many generations at once as the run will have open.

    Raises:
        ServiceError: One of them had no answer within `timeout_s`, or an error; the server's log is in it.
    """
    if wanted.batch < 2:
        return

    def generate(number: int) -> ServiceError | None:
        try:
            wanted.server.generate(timeout_s, f"{wanted.request_id}x{number}", wanted.extraction)
        except ServiceError as error:
            return error
        return None

    threads = ThreadPoolExecutor(wanted.batch, thread_name_prefix="ready")
    try:
        errors = [error for error in threads.map(generate, range(wanted.batch)) if error is not None]
    finally:
        threads.shutdown(wait=False)  # on Ctrl-C nobody waits for a hung engine: the caller ends it
    if not errors:
        return
    _require_alive(handle)
    raise ServiceError(
        f"{handle.spec.name} answers one request, but of {wanted.batch} at once, its batch in this run, "
        f"{len(errors)} failed within {timeout_s:.0f} s: {errors[0].what}",
        where=f"{wanted.server.url}; log: {handle.log}",
        hint="see the log; lower serve.max_num_seqs and the concurrency of the stage if the engine cannot "
        "run such batches, raise serve.progress_timeout_s if it is only slow",
        log_tail=handle.tail(),
    )
