"""A real Mooncake master, a producer and a consumer: do hidden states get through, and how fast?

The two ends run where the launcher puts the roles `serve` and `train`. This module starts and ends them,
and turns what they saw into facts; what a failure means is in `store_roundtrip_causes.py`, what is enough
in `store_roundtrip_rules.py`.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from profiles.schema import Profile
from tasks.errors import RetrainError
from tasks.plan.sizes import TargetSizes, sample_sizes
from tasks.processes.launcher import Handle, Launcher, ProcessSpec
from tasks.processes.service import running
from tasks.run_folder import RunFolder
from tasks.serve.store_master import start_master
from tasks.stream.roundtrip import MEMCPY_VARIABLE
from tasks.stream.roundtrip_link import EndStopped
from tasks.stream.roundtrip_settings import EndResult, EndRole, EndSettings
from tasks.validate.store_facts import StoreFacts
from tasks.validate.store_roundtrip_causes import Logs, connection_cause
from tasks.validate.store_roundtrip_outcome import Outcome, store_facts
from tasks.validate.store_roundtrip_plan import StoreEnds, ends_of, planned_series
from tasks.validate.store_roundtrip_rules import required_gb_per_s

TIMEOUT_S = 60.0
"""Longest time of the whole round trip; a healthy one takes 10 to 25 s."""
BUDGET_S = 25.0
"""No series begins later."""
_POLL_S = 0.05
_LOG_LINES = 2000
_MASTER = "store-check-master"
_ENDS: Mapping[EndRole, str] = {"produce": "store-check-produce", "consume": "store-check-consume"}
_CONSEQUENCES = ("peer_gone", "timeout")
"""Causes that an end names when the fault is at the other one."""


@dataclass
class _Ends:
    """The processes, and what is known of how they ended."""

    exchange: Path
    master: Handle | None = None
    producer: Handle | None = None
    consumer: Handle | None = None

    def result(self, role: EndRole) -> EndResult | None:
        path = self.exchange / f"{role}.result.json"
        if not path.exists():
            return None
        return EndResult.model_validate_json(path.read_text(encoding="utf-8"))

    def logs(self, spans_hosts: bool) -> Logs:
        producer, consumer, master = (
            tuple(handle.tail(_LOG_LINES)) if handle else ()
            for handle in (self.producer, self.consumer, self.master)
        )
        return Logs(producer=producer, consumer=consumer, master=master, spans_hosts=spans_hosts)


def round_trip(
    profile: Profile,
    target: TargetSizes,
    run: RunFolder,
    folder: Path,
    launcher: Launcher,
    *,
    ends: StoreEnds | None = None,
) -> StoreFacts:
    """Put, get and check tensors of the run's sizes, with its buffers and its number of writers.

    Args:
        folder: Stage folder, for the files that the two ends exchange; nothing of it stays.
        ends: Where the ends are; None puts each on the launcher's node of its role.

    Returns:
        Facts with a named cause, if something failed; nothing is raised for it.
    """
    if ends is None:
        serve, train = (launcher.place(profile, run, "validate", role) for role in ("serve", "train"))
        profile, ends = serve.profile, ends_of(serve, train)
    sizes = sample_sizes(profile, target)
    exchange = folder / "store"
    shutil.rmtree(exchange, ignore_errors=True)
    exchange.mkdir(parents=True, mode=0o700)
    try:
        outcome = _run(profile, sizes.largest_bytes, ends, run, exchange, launcher)
    finally:
        shutil.rmtree(exchange, ignore_errors=True)
    transfer = profile.hardware.transfer
    required = required_gb_per_s(transfer.tokens_per_s or 0.0, sizes.token_bytes, transfer.margin)
    return store_facts(profile, sizes.largest_bytes, ends, required, outcome)


def _run(
    profile: Profile, sample_bytes: int, ends: StoreEnds, run: RunFolder, exchange: Path, launcher: Launcher
) -> Outcome:
    processes = _Ends(exchange)
    stopped: tuple[str, str] | None = None
    try:
        _run_ends(profile, sample_bytes, ends, run, processes, launcher)
    except EndStopped as stop:
        stopped = (stop.cause_id, stop.what)
    except RetrainError as error:
        tail = " | ".join(error.log_tail[-3:])
        stopped = ("process_died", f"{error.what}: {tail}" if tail else error.what)
    logs = processes.logs(ends.spans_hosts)
    if stopped and stopped[0] in _CONSEQUENCES:
        stopped = connection_cause(logs) or stopped
    return Outcome(
        producer=processes.result("produce") or EndResult(),
        consumer=processes.result("consume") or EndResult(),
        series=planned_series(profile, sample_bytes),
        logs=logs,
        stopped=stopped,
    )


def _run_ends(
    profile: Profile,
    sample_bytes: int,
    ends: StoreEnds,
    run: RunFolder,
    processes: _Ends,
    launcher: Launcher,
) -> None:
    """Start master, producer and consumer, and wait until both ends have said how it went.

    Raises:
        EndStopped: One of them cannot go on.
        RetrainError: A process could not be started, or the master died.
    """
    deadline = time.monotonic() + TIMEOUT_S
    for name in (_MASTER, *_ENDS.values()):  # causes are read from logs: an earlier attempt's would mislead
        (run.logs / f"{name}.log").unlink(missing_ok=True)
    with ExitStack() as stack:
        processes.master, master = start_master(profile, run, launcher, name=_MASTER)
        stack.callback(processes.master.stop)
        settings = _settings(profile, sample_bytes, ends, master, processes.exchange)
        produce = _spec(settings["produce"], processes.exchange)
        processes.producer = stack.enter_context(running(launcher, produce, run))
        peer = _wait_ready(processes, Path(settings["produce"].ready_file), deadline)
        told = settings["consume"].model_copy(update={"peer": peer})
        consume = _spec(told, processes.exchange)
        processes.consumer = stack.enter_context(running(launcher, consume, run))
        _wait_results(processes, deadline)


def _settings(
    profile: Profile, sample_bytes: int, ends: StoreEnds, master: str, exchange: Path
) -> Mapping[EndRole, EndSettings]:
    store = profile.store
    produce = EndSettings(
        role="produce",
        host=ends.producer_host,
        master=master,
        peer="",
        protocol=store.protocol,
        device=store.device,
        gid_index=store.gid_index,
        interface=store.interface,
        spans_hosts=ends.spans_hosts,
        segment_bytes=store.segment_bytes,
        local_buffer_bytes=store.local_buffer_bytes,
        series=planned_series(profile, sample_bytes),
        ready_file=str(exchange / "ready.json"),
        result_file=str(exchange / "produce.result.json"),
        budget_s=BUDGET_S,
        timeout_s=TIMEOUT_S,
    )
    consume = produce.model_copy(
        update={
            "role": "consume",
            "host": ends.consumer_host,
            "result_file": str(exchange / "consume.result.json"),
        }
    )
    return {"produce": produce, "consume": consume}


def _spec(settings: EndSettings, exchange: Path) -> ProcessSpec:
    """One end as a process; its configuration is a file in `exchange`."""
    path = exchange / f"{settings.role}.json"
    path.write_text(settings.model_dump_json(), encoding="utf-8")
    return ProcessSpec(
        name=_ENDS[settings.role],
        stage="validate",
        role="serve" if settings.role == "produce" else "train",
        argv=(sys.executable, "-m", "tasks.stream.roundtrip", str(path)),
        env={"PYTHONPATH": str(Path(__file__).resolve().parents[2]), MEMCPY_VARIABLE: "0"},
    )


def _wait_ready(processes: _Ends, ready: Path, deadline: float) -> str:
    """`host:port` on which the producer waits for the consumer; the host as the producer's node knows it."""
    while not ready.exists():
        _raise_if_stopped(processes, "produce", processes.producer)
        _raise_if_late(deadline, "the producer did not get ready")
        time.sleep(_POLL_S)
    told = json.loads(ready.read_text(encoding="utf-8"))
    host = f"[{told['host']}]" if ":" in told["host"] else told["host"]
    return f"{host}:{told['port']}"


def _wait_results(processes: _Ends, deadline: float) -> None:
    """Wait for both ends; a cause of one that is not the other's fault ends the wait at once."""
    while True:
        done = [processes.result("produce"), processes.result("consume")]
        if all(done):
            break
        if any(result and result.cause_id not in ("", *_CONSEQUENCES) for result in done):
            break
        _raise_if_died(processes.producer, done[0])
        _raise_if_died(processes.consumer, done[1])
        _raise_if_late(deadline, "the two ends did not finish")
        time.sleep(_POLL_S)
    _raise_cause(processes)


def _raise_cause(processes: _Ends) -> None:
    """Raise the cause that an end named; one that only reflects the other end comes last."""
    named: list[tuple[str, str]] = []
    for role, name in (("consume", "consumer"), ("produce", "producer")):
        result = processes.result("consume" if role == "consume" else "produce")
        if result and result.cause_id:
            named.append((result.cause_id, f"{name}: {result.cause}"))
    named.sort(key=lambda cause: cause[0] in _CONSEQUENCES)
    if named:
        raise EndStopped(*named[0])


def _raise_if_stopped(processes: _Ends, role: EndRole, handle: Handle | None) -> None:
    result = processes.result(role)
    if result and result.cause_id:
        raise EndStopped(result.cause_id, f"producer: {result.cause}")
    _raise_if_died(handle, result)


def _raise_if_died(handle: Handle | None, result: EndResult | None) -> None:
    """A process that ended without a result file died."""
    code = handle.poll() if handle and result is None else None
    if handle is None or code is None:
        return
    raise EndStopped(
        "process_died", f"{handle.spec.name} ended with status {code}: {' | '.join(handle.tail(3))}"
    )


def _raise_if_late(deadline: float, what: str) -> None:
    if time.monotonic() > deadline:
        raise EndStopped("timeout", f"{what} within {TIMEOUT_S:g} s")
