"""One end of the store's round trip: `python -m tasks.stream.roundtrip CONFIG.json`.

The producer puts tensors of the run's sizes, the consumer gets, checks and removes them, round by round; a
line of JSON each way keeps them in step. First the producer's segment holds the objects (the get crosses the
link), then the consumer's (the put crosses). Both write what they saw into a JSON file.

A put and a get inside one process would measure a copy in memory, hence two.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks.errors import StoreError, UsageError
from tasks.stream.roundtrip_counters import Direction, expected_devices, gained, read_counters, settle
from tasks.stream.roundtrip_link import EndStopped, Link, accept, connect, listen, require_own_address
from tasks.stream.roundtrip_measure import Rounds, digest, payload, stamp, timed
from tasks.stream.roundtrip_settings import (
    EndResult,
    EndSettings,
    Failure,
    Operation,
    Placement,
    Series,
    Times,
    Traffic,
)
from tasks.stream.transport import Transport

PLACEMENTS: tuple[Placement, ...] = ("producer", "consumer")
MEMCPY_VARIABLE = "MC_STORE_MEMCPY"
"""Mooncake copies in memory what its own client holds; `0` sends it through the transport as well."""
_COUNTERS_SETTLE_S = 2.5


@dataclass
class Seen:
    """What this end has seen so far."""

    failures: list[Failure] = field(default_factory=list)
    times: list[Times] = field(default_factory=list)
    traffic: list[Traffic] = field(default_factory=list)


def produce(config: EndSettings, seen: Seen) -> None:
    """Wait for the consumer, then put every series in both placements."""
    require_own_address(config.host, config.spans_hosts)
    connect(config.master, "the store's master").close()
    with listen(config.host) as listener:
        ready = {"host": config.host, "port": listener.getsockname()[1]}
        write(Path(config.ready_file), json.dumps(ready))
        _load_torch()
        link = accept(listener, config.timeout_s)
    last_start = time.monotonic() + config.budget_s
    for placement in PLACEMENTS:
        with _client(config, placement == "producer") as client:
            _meet(link)
            before = read_counters("sent")
            moved = sum(
                _put_series(client, link, number, series, seen)
                for number, series in enumerate(config.series)
                if series.placement == placement and time.monotonic() < last_start
            )
            link.send({"end": placement})
            seen.traffic.append(_traffic(config, placement, "sent", before, moved))
            _meet(link)


def _put_series(client: Any, link: Link, number: int, series: Series, seen: Seen) -> int:
    """Put round after round until enough, too late, or one fails; returns the payload put, bytes."""
    tensors = [payload(slot, series.size_bytes) for slot in range(series.concurrency)]
    rounds = Rounds()
    started = time.monotonic()
    with ThreadPoolExecutor(series.concurrency) as threads:
        link.send({"series": number})
        for turn in range(series.warmups + series.repetitions):
            spent_s = time.monotonic() - started
            if turn and spent_s > (series.limit_s if turn >= series.least else series.slowest_s):
                break
            keys = [f"check-{number}-{turn}-{slot}" for slot in range(series.concurrency)]
            for tensor, key in zip(tensors, keys, strict=True):
                stamp(tensor, key)
            digests = list(threads.map(digest, tensors))
            wall_s, calls = timed(threads, client.raw.put_tensor, keys, tensors)
            codes = [int(code) for code, _ in calls]
            rounds.add(wall_s, [ms for code, ms in calls if code == 0])
            seen.failures += _failures(number, series, "put", keys, codes)
            there = {key: one for key, one, code in zip(keys, digests, codes, strict=True) if code == 0}
            link.send({"digests": there})
            if not link.receive()["good"] or len(there) < len(keys):
                break  # more of the same would only push the telling lines out of the logs
    link.send({"digests": None})
    times = rounds.times("put", number, series)
    seen.times.append(times)
    return times.succeeded * series.size_bytes


def consume(config: EndSettings, seen: Seen) -> None:
    """Get, check and remove what the producer announces."""
    require_own_address(config.host, config.spans_hosts)
    connect(config.master, "the store's master").close()
    link = Link(connect(config.peer, "the producer"), config.timeout_s)
    _load_torch()
    for placement in PLACEMENTS:
        with _client(config, placement == "consumer") as client:
            _meet(link)
            before = read_counters("received")
            moved = 0
            while "series" in (message := link.receive()):
                number = int(message["series"])
                moved += _get_series(client, link, number, config.series[number], seen)
            seen.traffic.append(_traffic(config, placement, "received", before, moved))
            _meet(link)


def _get_series(client: Any, link: Link, number: int, series: Series, seen: Seen) -> int:
    """Get every announced round; returns the payload that came back, bytes."""
    rounds = Rounds()
    with ThreadPoolExecutor(series.concurrency) as threads:
        while (wanted := link.receive()["digests"]) is not None:
            keys = list(wanted)
            wall_s, calls = timed(threads, client.raw.get_tensor, keys)
            got = dict(zip(keys, (tensor for tensor, _ in calls), strict=True))
            rounds.add(wall_s, [ms for tensor, ms in calls if tensor is not None])
            codes = [_verdict(got[key], wanted[key]) for key in keys]
            seen.failures += _failures(number, series, "get", keys, codes)
            for key in keys:
                client.remove(key)
            link.send({"good": not any(codes)})
    times = rounds.times("get", number, series)
    seen.times.append(times)
    return times.succeeded * series.size_bytes


def _verdict(tensor: Any, wanted: str) -> int | str:
    if tensor is None:
        return "none"
    return 0 if digest(tensor) == wanted else "checksum"


def _failures(
    number: int, series: Series, operation: Operation, keys: list[str], codes: Iterable[int | str]
) -> list[Failure]:
    return [
        Failure(series=number, placement=series.placement, operation=operation, key=key, code=str(code))
        for key, code in zip(keys, codes, strict=True)
        if code != 0
    ]


def _client(config: EndSettings, lends: bool) -> Any:
    from tasks.stream.store import StoreClient

    try:
        return StoreClient(
            config.master,
            host=config.host,
            protocol=config.protocol,
            device=config.device,
            local_buffer_bytes=config.local_buffer_bytes,
            segment_bytes=config.segment_bytes if lends else 0,
        )
    except StoreError as error:
        raise EndStopped("setup_failed", error.what) from None


def _load_torch() -> None:
    """Import it while the other end starts, not inside a measurement."""
    import torch  # noqa: F401


def _meet(link: Link) -> None:
    """Go on when both ends are here."""
    link.send({"here": True})
    link.receive()


def _traffic(
    config: EndSettings, placement: Placement, direction: Direction, before: dict[str, int], moved: int
) -> Traffic:
    """What the devices carried since `before`; waits for counters only where the payload must be in them."""
    expected = expected_devices(config.protocol, config.device, config.host, before)
    carried = settle(
        lambda: gained(before, read_counters(direction)),
        expected,
        wanted_bytes=0.9 * moved if config.spans_hosts else 0,
        longest_s=_COUNTERS_SETTLE_S,
    )
    return Traffic(placement=placement, payload_bytes=moved, device_bytes=carried, expected=expected)


def as_on_this_node(config: EndSettings) -> EndSettings:
    """Set up the transport as the run's own clients do, before Mooncake is loaded; the address is found here.

    Raises:
        EndStopped: The interface is not on this node.
    """
    transport = Transport(config.protocol, config.device, config.gid_index, config.interface, config.host)
    try:
        os.environ.update(transport.environment())
        return config.model_copy(update={"host": transport.address()})
    except UsageError as error:
        raise EndStopped("setup_failed", f"{error.what} ({error.where}; {error.hint})") from None


def write(path: Path, text: str) -> None:
    """Write a file that the other side may be waiting for."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def main(config_path: str) -> int:
    """Run the end that the configuration names; its result file says how it went."""
    config = EndSettings.model_validate_json(Path(config_path).read_text(encoding="utf-8"))
    seen = Seen()
    cause_id = cause = ""
    try:
        {"produce": produce, "consume": consume}[config.role](as_on_this_node(config), seen)
    except EndStopped as stopped:
        cause_id, cause = stopped.cause_id, stopped.what
    except StoreError as failure:
        cause_id, cause = "store_refused", failure.what
    except ImportError as error:
        cause_id, cause = "not_installed", f"the store cannot be loaded: {error}"
    result = EndResult(
        cause_id=cause_id,
        cause=cause,
        failures=tuple(seen.failures),
        times=tuple(seen.times),
        traffic=tuple(seen.traffic),
    )
    write(Path(config.result_file), result.model_dump_json())
    return 1 if cause_id else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
