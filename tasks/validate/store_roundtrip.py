"""A real Mooncake master on the run's address, a producer and a consumer: do hidden states get through?"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from profiles.schema import Profile
from tasks.errors import RetrainError
from tasks.plan.sizes import sample_sizes
from tasks.processes.launcher import Handle, Launcher, ProcessSpec
from tasks.processes.service import running
from tasks.run_folder import RunFolder
from tasks.serve.store_master import start_master
from tasks.serve.target_config import TargetConfig
from tasks.validate.store_facts import StoreFacts

TIMEOUT_S = 25.0
_POLL_S = 0.05
_MIN_SEGMENT_BYTES = 64 * 2**20


class _Stopped(Exception):
    """The round trip cannot go on; the text is the cause."""


def round_trip(
    profile: Profile, target: TargetConfig, run: RunFolder, folder: Path, launcher: Launcher
) -> StoreFacts:
    """Put, get, compare and remove objects of the run's typical and largest sample size.

    Args:
        folder: Stage folder, for the files that the two ends exchange; nothing of it stays.
    """
    sizes = sample_sizes(profile, target)
    exchange = folder / "store"
    shutil.rmtree(exchange, ignore_errors=True)
    exchange.mkdir(parents=True, mode=0o700)
    try:
        times = _run_ends(profile, (sizes.typical_bytes, sizes.largest_bytes), run, exchange, launcher)
    except _Stopped as stopped:
        return StoreFacts(
            ran=True, cause=str(stopped), sizes_bytes=(sizes.typical_bytes, sizes.largest_bytes)
        )
    except RetrainError as error:
        tail = " | ".join(error.log_tail[-3:])
        cause = f"{error.what}: {tail}" if tail else error.what
        return StoreFacts(ran=True, cause=cause, sizes_bytes=(sizes.typical_bytes, sizes.largest_bytes))
    finally:
        shutil.rmtree(exchange, ignore_errors=True)
    total = sizes.typical_bytes + sizes.largest_bytes
    return StoreFacts(
        ran=True,
        sizes_bytes=(sizes.typical_bytes, sizes.largest_bytes),
        get_ms=tuple(times),
        megabytes_per_s=round(total / 1e3 / max(sum(times), 1e-6), 1),
    )


def _run_ends(
    profile: Profile, sizes: tuple[int, int], run: RunFolder, exchange: Path, launcher: Launcher
) -> list[float]:
    deadline = time.monotonic() + TIMEOUT_S
    master, address = start_master(profile, run, launcher, name="store-check-master")
    try:
        produce = _end(profile, "produce", sizes, address, exchange)
        with running(launcher, produce, run) as producer:
            produced, consumed = exchange / "produce.result.json", exchange / "consume.result.json"
            _wait_file(producer, exchange / "ready.json", produced, deadline)
            consume = _end(profile, "consume", sizes, address, exchange)
            with running(launcher, consume, run) as consumer:
                _wait_file(consumer, consumed, consumed, deadline)
            result = _read(consumed)
            (exchange / "done.json").write_text("{}", encoding="utf-8")
            _wait_file(producer, produced, produced, deadline)
    finally:
        master.stop()
    if result["cause"]:
        raise _Stopped(result["cause"])
    return list(result["get_ms"])


def _end(profile: Profile, role: str, sizes: tuple[int, int], master: str, exchange: Path) -> ProcessSpec:
    """One end as a process; its configuration is a file in `exchange`."""
    store = profile.store
    largest = max(sizes)
    config = {
        "role": role,
        "master": master,
        "host": store.host,
        "protocol": store.protocol,
        "device": store.device,
        "segment_bytes": max(_MIN_SEGMENT_BYTES, 4 * largest),
        "local_buffer_bytes": max(_MIN_SEGMENT_BYTES, 2 * largest),
        "keys": [f"check-{number}" for number in range(len(sizes))],
        "sizes_bytes": list(sizes),
        "ready_file": str(exchange / "ready.json"),
        "done_file": str(exchange / "done.json"),
        "result_file": str(exchange / f"{role}.result.json"),
        "timeout_s": TIMEOUT_S,
    }
    path = exchange / f"{role}.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return ProcessSpec(
        name=f"store-check-{role}",
        stage="validate",
        role="serve" if role == "produce" else "train",
        argv=(sys.executable, "-m", "tasks.stream.roundtrip", str(path)),
        env={"PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    )


def _wait_file(handle: Handle, wanted: Path, result_file: Path, deadline: float) -> None:
    """Wait for `wanted`; a result file with a cause, a dead process or the deadline ends the wait."""
    while not wanted.exists():
        if result_file.exists() and (cause := _read(result_file)["cause"]):
            raise _Stopped(f"{handle.spec.name}: {cause}")
        if wanted.exists():
            return
        _still_possible(handle, deadline, f"{handle.spec.name} did not finish")
        time.sleep(_POLL_S)


def _still_possible(handle: Handle, deadline: float, otherwise: str) -> None:
    code = handle.poll()
    if code not in (None, 0):
        tail = " | ".join(handle.tail(3))
        raise _Stopped(f"{handle.spec.name} ended with status {code}: {tail}")
    if time.monotonic() > deadline:
        raise _Stopped(f"{otherwise} within {TIMEOUT_S:g} s")


def _read(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result
