"""Facts of a round trip from what its two ends saw. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from profiles.schema import Profile
from profiles.streaming import in_flight_bytes
from tasks.stream.roundtrip_settings import EndResult, Operation, Placement, Series, Times, Traffic
from tasks.validate.store_facts import StoreFacts, StoreTransfer
from tasks.validate.store_roundtrip_causes import Logs, name_causes, sentence
from tasks.validate.store_roundtrip_plan import StoreEnds, whole_words

CROSSING: dict[Placement, Operation] = {"producer": "get", "consumer": "put"}
"""Whose segment holds the objects -> which operation takes them over the link."""


@dataclass(frozen=True)
class Outcome:
    """What is left when the processes have ended.

    Args:
        stopped: Named cause and words, if the ends could not do all they were told.
    """

    producer: EndResult
    consumer: EndResult
    series: tuple[Series, ...]
    logs: Logs
    stopped: tuple[str, str] | None = None


@dataclass(frozen=True)
class Crossed:
    """Payload that had to cross the link in one placement, and what the devices of both ends carried.

    Args:
        crossed_bytes: The smaller of sent and received; None if an end has no device that holds its address.
        devices: Devices on which it belonged, producer's first.
    """

    placement: Placement
    payload_bytes: int
    crossed_bytes: int | None
    devices: tuple[str, ...]


def store_facts(
    profile: Profile, sample_bytes: int, ends: StoreEnds, required_gb_per_s: float, outcome: Outcome
) -> StoreFacts:
    """Turn what was seen into facts; the first cause in words is the one that most objects failed of."""
    failures = (*outcome.producer.failures, *outcome.consumer.failures)
    causes = name_causes(failures, outcome.logs)
    cause_id, cause = outcome.stopped or ("", "")
    if not cause and causes:
        cause_id = causes.most_common(1)[0][0]
        cause = "; ".join(sentence(one, failures, outcome.logs) for one, _ in causes.most_common())
    worst = worst_crossing(crossings(outcome))
    store = profile.store
    return StoreFacts(
        ran=True,
        cause_id=cause_id,
        cause=cause,
        failures=dict(causes),
        protocol=store.protocol,
        device=store.device,
        spans_hosts=ends.spans_hosts,
        interface=" -> ".join(worst.devices) if worst else None,
        payload_bytes=worst.payload_bytes if worst else None,
        crossed_bytes=worst.crossed_bytes if worst else None,
        local_buffer_bytes=store.local_buffer_bytes,
        segment_bytes=store.segment_bytes,
        writer_threads=store.writer_threads,
        readers=profile.hardware.transfer.readers,
        sample_bytes=sample_bytes,
        in_flight_bytes=in_flight_bytes(profile.stream, profile.store),
        required_gb_per_s=required_gb_per_s,
        observed_gb_per_s=observed_rate(outcome, sample_bytes),
        transfers=transfers(outcome),
    )


def transfers(outcome: Outcome) -> tuple[StoreTransfer, ...]:
    """One row for each series and operation, in the order of the plan."""
    rows = []
    for number, series in enumerate(outcome.series):
        rows += [
            _transfer(number, series, "put", outcome.producer),
            _transfer(number, series, "get", outcome.consumer),
        ]
    return tuple(row for row in rows if row)


def _transfer(number: int, series: Series, operation: Operation, end: EndResult) -> StoreTransfer | None:
    times = next((one for one in end.times if one.series == number), None)
    codes = Counter(one.code for one in end.failures if one.series == number)
    if times is None and not codes:
        return None
    changed = codes.pop("checksum", 0)
    return StoreTransfer(
        operation=operation,
        placement=series.placement,
        size_bytes=series.size_bytes,
        concurrency=series.concurrency,
        succeeded=times.succeeded - changed if times else 0,
        return_codes=dict(codes),
        checksum_mismatches=changed,
        p50_ms=percentile(times.milliseconds, 0.50) if times else None,
        p95_ms=percentile(times.milliseconds, 0.95) if times else None,
        gb_per_s=times.gb_per_s if times else None,
    )


def observed_rate(outcome: Outcome, sample_bytes: int) -> float | None:
    """GB/s over the link as the run uses it: the largest samples, all at once, from the producer's segment.

    None if nothing was measured there.
    """
    times: dict[int, Times] = {one.series: one for one in outcome.consumer.times}
    measured = [
        (series.concurrency, times[number].gb_per_s)
        for number, series in enumerate(outcome.series)
        if series.placement == "producer" and number in times
        if series.size_bytes == whole_words(sample_bytes)
    ]
    return max(measured, key=lambda one: one[0])[1] if measured else None


def crossings(outcome: Outcome) -> tuple[Crossed, ...]:
    """What crossed in each placement in which something could; both ends must have finished it."""
    sent = {one.placement: one for one in outcome.producer.traffic}
    received = {one.placement: one for one in outcome.consumer.traffic}
    both = [_crossed(sent[one], received[one]) for one in CROSSING if one in sent and one in received]
    return tuple(one for one in both if one.payload_bytes)


def worst_crossing(found: Sequence[Crossed]) -> Crossed | None:
    """The placement in which the smallest share of the payload was seen."""

    def share(one: Crossed) -> float:
        if one.crossed_bytes is None or not one.payload_bytes:
            return -1.0
        return one.crossed_bytes / one.payload_bytes

    return min(found, key=share, default=None)


def percentile(values: Sequence[float], share: float) -> float | None:
    """Smallest value that at least `share` of the values do not exceed."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 100) * len(ordered) // 100) - 1)]


def _crossed(sent: Traffic, received: Traffic) -> Crossed:
    both = (_carried(sent), _carried(received))
    crossed = None if None in both else min(one for one in both if one is not None)
    moved = received if CROSSING[sent.placement] == "get" else sent
    devices = ("+".join(sent.expected) or "none", "+".join(received.expected) or "none")
    return Crossed(sent.placement, moved.payload_bytes, crossed, devices)


def _carried(traffic: Traffic) -> int | None:
    if not traffic.expected:
        return None
    return sum(traffic.device_bytes.get(device, 0) for device in traffic.expected)
