"""Readiness against a program that speaks vLLM's HTTP and misbehaves in every way that was seen."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tasks.errors import PortInUse, ServiceError
from tasks.processes.guard import close_registry
from tasks.processes.identity import is_running, process_table, start_time
from tasks.processes.launcher import Handle, LocalLauncher, ProcessSpec
from tasks.processes.ports import free_port
from tasks.report.progress import SilentProgress
from tasks.run_folder import RunFolder
from tasks.serve import readiness
from tasks.serve.readiness import Limits, Wanted, wait_ready
from tasks.serve.vllm_http import Server
from tasks.serve.watchdog import ProgressWatchdog, counter_sum

FAKE = Path(__file__).parents[3] / "fakes" / "vllm_server.py"
KEY = "key-of-this-run"
LONG_S = 600.0
"""No test may fail because the machine is busy: what should happen may take minutes."""
PATIENT = Limits(ready_s=LONG_S, idle_s=LONG_S, generation_s=LONG_S)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunFolder]:
    folder = RunFolder(tmp_path / "runs" / "run-1")
    for path in (folder.logs, folder.services, folder.progress):
        path.mkdir(parents=True)
    yield folder
    close_registry(folder.services)


@pytest.fixture
def serve(run: RunFolder) -> Iterator[Callable[..., tuple[Handle, Wanted]]]:
    """Start the fake; returns its handle and what readiness should find."""
    handles = []

    def start(*flags: str, port: int = 0) -> tuple[Handle, Wanted]:
        port = port or free_port()
        argv = (sys.executable, "-S", str(FAKE), "--port", str(port), "--model", "/m", *flags)
        spec = ProcessSpec("target", "serve", "serve", argv, secret_env={"VLLM_API_KEY": KEY}, ports=(port,))
        handle = LocalLauncher().start(spec, run)
        handles.append(handle)
        server = Server(f"http://127.0.0.1:{port}", "target", KEY)
        return handle, Wanted(server, port, Path("/m"), request_id="run-1-ready", extraction=True)

    yield start
    for handle in handles:
        handle.stop()


def fails(handle: Handle, wanted: Wanted, limits: Limits = PATIENT) -> ServiceError:
    with pytest.raises(ServiceError) as info:
        wait_ready(handle, wanted, limits, SilentProgress())
    return info.value


Serve = Callable[..., tuple[Handle, Wanted]]


def test_ready_means_a_real_generation(serve: Serve) -> None:
    handle, wanted = serve()
    assert wait_ready(handle, wanted, PATIENT, SilentProgress()) < LONG_S
    assert counter_sum(wanted.server.metrics(), "vllm:generation_tokens_total") == 4
    assert KEY not in repr(wanted)


class Polls:
    """The clock of the waiting: every poll takes `step_s` seconds, however long it really takes.

    At each of the first `lines` polls the log grows by one line, then the server may begin to listen.
    """

    def __init__(self, log: Path, gate: Path, lines: int, step_s: float) -> None:
        self.log, self.gate, self.lines, self.step_s = log, gate, lines, step_s
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        if self.lines > 0:
            self.lines -= 1
            self.now += self.step_s
            with open(self.log, "a", encoding="utf-8") as stream:
                stream.write("INFO: loading weights\n")
            return
        self.gate.touch()
        time.sleep(0.02)  # the start of the real process is waited for while the clock stands


def test_slow_start_that_shows_progress_gets_the_whole_limit(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine seconds to each line of the log, ten allowed: a start of 180 seconds, eighteen times the limit."""
    gate = tmp_path / "gate"
    handle, wanted = serve("--gate", str(gate))
    clock = Polls(handle.log, gate, lines=20, step_s=9.0)
    monkeypatch.setattr(readiness, "time", clock)
    limits = Limits(ready_s=LONG_S, idle_s=10.0, generation_s=LONG_S)
    assert wait_ready(handle, wanted, limits, SilentProgress()) == 180.0


def test_silent_start_fails_at_the_idle_limit(serve: Serve) -> None:
    error = fails(*serve("--fault", "silent"), Limits(ready_s=LONG_S, idle_s=0.5, generation_s=LONG_S))
    assert "silent" in error.what and "ready_idle_s" in error.where


def test_chatty_start_fails_at_the_total_limit(serve: Serve) -> None:
    handle, wanted = serve("--fault", "chatty")
    _until(lambda: "compiling" in handle.log.read_text())
    error = fails(handle, wanted, Limits(ready_s=0.6, idle_s=LONG_S, generation_s=LONG_S))
    assert "not ready" in error.what and "ready_timeout_s" in error.where
    assert any("compiling" in line for line in error.log_tail)


def test_engine_that_hangs_behind_green_endpoints(serve: Serve) -> None:
    error = fails(*serve("--fault", "no-generation"), Limits(ready_s=LONG_S, idle_s=LONG_S, generation_s=0.5))
    assert "engine not progressing" in error.what and error.log_tail


def test_ready_means_the_working_batch_too(serve: Serve) -> None:
    handle, wanted = serve()
    wait_ready(handle, replace(wanted, batch=6), PATIENT, SilentProgress())
    assert counter_sum(wanted.server.metrics(), "vllm:generation_tokens_total") == 4 + 6 * 4
    log = handle.log.read_text()
    assert log.count("POST /v1/completions") == 7


def test_engine_that_hangs_at_the_working_batch_only(serve: Serve) -> None:
    """The first request is answered however long that takes; only then does the short limit begin."""
    handle, wanted = serve("--fault", "stops-after", "--count", "1")
    wait_ready(handle, wanted, PATIENT, SilentProgress())
    with pytest.raises(ServiceError) as info:
        readiness._working_batch(handle, replace(wanted, batch=5), 1.0)
    error = info.value
    assert "answers one request, but of 5 at once" in error.what and "5 failed within 1 s" in error.what
    assert "engine not progressing" in error.what and error.log_tail
    assert "serve.max_num_seqs" in error.hint and "serve.progress_timeout_s" in error.hint


@pytest.mark.timeout(900)
def test_ctrl_c_does_not_wait_for_a_hung_batch(serve: Serve) -> None:
    handle, wanted = serve("--fault", "stops-after", "--count", "1")
    main = threading.main_thread().ident
    assert main is not None

    def ctrl_c() -> None:
        while counter_sum(wanted.server.metrics(), "vllm:num_requests_running") < 3:
            time.sleep(0.02)
        signal.pthread_kill(main, signal.SIGINT)

    _until(wanted.server.is_healthy)
    threading.Thread(target=ctrl_c).start()
    with pytest.raises(KeyboardInterrupt):
        wait_ready(handle, replace(wanted, batch=3), PATIENT, SilentProgress())
    handle.stop()


def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_wrong_model(serve: Serve) -> None:
    assert "another-model" in fails(*serve("--fault", "wrong-model")).what


def test_right_name_of_another_folder(serve: Serve) -> None:
    assert "/other" in fails(*serve("--model", "/other")).what


def test_server_without_hidden_states(serve: Serve) -> None:
    assert "without hidden states" in fails(*serve("--fault", "no-handle")).what


@pytest.mark.parametrize(
    ("words", "what", "hint"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried", "too little free memory", "max_num_seqs"),
        ("Model architectures ['X'] are not supported for now", "does not know the model", "newer engine"),
        ("User-specified max_model_len (9) is greater than the derived", "max_model_len", "lower"),
        ("ImportError: libibverbs.so.1: cannot open shared object file", "shared library", "libibverbs1"),
        ("OSError: [Errno 98] Address already in use", "port was taken", "0"),
    ],
)
def test_death_with_a_known_cause(serve: Serve, words: str, what: str, hint: str) -> None:
    error = fails(*serve("--fault", "dies", "--last-words", words))
    assert "exit status 1" in error.what and what in error.what and words in error.what
    assert hint in error.hint and error.log_tail[-1] == words


def test_death_of_unknown_cause_shows_the_log(serve: Serve) -> None:
    error = fails(*serve("--fault", "dies", "--last-words", "strange"))
    assert error.log_tail[-1] == "strange"


def test_foreign_program_on_the_port(serve: Serve) -> None:
    """A foreign server answers everything as ours would, even with our key; the process is not ours."""
    port = free_port()
    argv = [sys.executable, "-S", str(FAKE), "--port", str(port), "--model", "/m"]
    foreign = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
    try:
        _until(lambda: _listens(port))
        handle, wanted = serve("--fault", "silent", port=port)
        with pytest.raises(PortInUse, match=f"another process: .*pid {foreign.pid}"):
            wait_ready(handle, wanted, PATIENT, SilentProgress())
        assert foreign.poll() is None
    finally:
        foreign.kill()
        foreign.wait()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def test_engine_processes_end_with_the_server(serve: Serve) -> None:
    handle, wanted = serve("--family", "--fault", "ignores-term")
    wait_ready(handle, wanted, PATIENT, SilentProgress())
    family = [
        row for row in process_table().values() if row.session == handle.pid or row.parent == handle.pid
    ]
    assert len(family) >= 2
    handle.stop(grace_s=0.2)
    assert not any(is_running(row.pid, row.start_ticks) for row in family)
    assert start_time(handle.pid) == 0
    with socket.create_server(("127.0.0.1", wanted.port)):
        pass


def test_watchdog_follows_progress(serve: Serve) -> None:
    handle, wanted = serve("--fault", "stops-after", "--count", "1")
    wait_ready(handle, wanted, PATIENT, SilentProgress())
    watchdog = ProgressWatchdog(wanted.server, 0.4, handle)
    _check_for(watchdog, 0.9)  # nothing is open, so nothing is stuck
    with pytest.raises(ServiceError):
        wanted.server.generate(0.2, "stuck", extraction=False)
    with pytest.raises(ServiceError, match="engine not progressing") as info:
        _check_for(watchdog, LONG_S)
    assert info.value.log_tail


def _check_for(watchdog: ProgressWatchdog, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        watchdog.check()
        time.sleep(0.05)


def test_watchdog_notices_death_at_once(serve: Serve) -> None:
    handle, wanted = serve()
    wait_ready(handle, wanted, PATIENT, SilentProgress())
    watchdog = ProgressWatchdog(wanted.server, 60.0, handle)
    watchdog.check()
    handle.stop()
    with pytest.raises(ServiceError, match="while it was needed"):
        watchdog.check()
