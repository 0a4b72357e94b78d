"""What the two ends of the store's round trip are told, and what they say afterwards, as JSON files."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Placement = Literal["producer", "consumer"]
"""Whose segment holds the objects: the producer's makes the get cross the link, the consumer's the put."""
Operation = Literal["put", "get"]
EndRole = Literal["produce", "consume"]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Series(_Record):
    """Objects of one size, written and read `concurrency` at a time.

    Args:
        warmups: First rounds whose times do not count.
        least: Rounds that run even after `limit_s`: the first touches memory that no later one pays for.
        limit_s: No further round begins later than this.
        slowest_s: No round at all begins later, but for the first.
    """

    placement: Placement
    size_bytes: int
    concurrency: int
    warmups: int
    repetitions: int
    least: int
    limit_s: float
    slowest_s: float


class EndSettings(_Record):
    """Configuration of one end.

    Args:
        host: Address that this end gives as its own, as the run would.
        interface: Network interface whose address it gives instead, looked up on this end's node; or empty.
        gid_index: Row of the RDMA ports' GID table; None lets Mooncake choose.
        master: `host:port` of the store's master.
        peer: `host:port` on which the producer waits for the consumer; empty for the producer.
        spans_hosts: The two ends are planned on different hosts.
        segment_bytes: Memory lent to the store by whichever end the placement names.
        budget_s: No series begins later, so that a link which is far too slow is measured and not waited for.
        timeout_s: Longest wait for the other end.
    """

    role: EndRole
    host: str
    master: str
    peer: str
    protocol: str
    device: str
    gid_index: int | None = None
    interface: str = ""
    spans_hosts: bool
    segment_bytes: int
    local_buffer_bytes: int
    series: tuple[Series, ...]
    ready_file: str
    result_file: str
    budget_s: float
    timeout_s: float


class Failure(_Record):
    """One object that was not written, not read, or came back changed.

    Args:
        series: Index of its series.
    """

    series: int
    placement: Placement
    operation: Operation
    key: str
    code: str
    """Return code, `none` for a get that returned nothing, `checksum` for other bytes."""


class Times(_Record):
    """What one end measured in one series, warm-ups left out.

    Args:
        series: Index of the series.
    """

    series: int
    operation: Operation
    succeeded: int
    """Objects, warm-ups included."""
    milliseconds: tuple[float, ...] = ()
    """Time of each call that succeeded."""
    gb_per_s: float | None = None
    """Payload over wall time, GB/s (1e9 bytes)."""


class Traffic(_Record):
    """What this end's network devices carried while one placement was measured, bytes."""

    placement: Placement
    payload_bytes: int
    """Payload of the operation that crosses, as this end saw it."""
    device_bytes: dict[str, int]
    """Device -> bytes in the payload's direction: sent by the producer, received by the consumer."""
    expected: tuple[str, ...]
    """Devices on which the payload belongs."""


class EndResult(_Record):
    """How one end went."""

    cause_id: str = ""
    """Empty unless the end had to stop."""
    cause: str = ""
    failures: tuple[Failure, ...] = ()
    times: tuple[Times, ...] = ()
    traffic: tuple[Traffic, ...] = ()
