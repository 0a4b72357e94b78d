"""Facts about the hidden-state store: what its round trip saw."""

from __future__ import annotations

from typing import Literal

from tasks.validate.fact_group import FactGroup


class StoreTransfer(FactGroup):
    """Objects of one size, in one direction, at one concurrency."""

    operation: Literal["put", "get"]
    placement: Literal["producer", "consumer"]
    """Whose segment holds the objects. A put crosses the link when it is the consumer's, a get when it is
    the producer's."""
    size_bytes: int
    concurrency: int
    succeeded: int = 0
    return_codes: dict[str, int] = {}
    """Return code that was not a success (`-200`, `none`, ...) -> how often."""
    crc_mismatches: int = 0
    p50_ms: float | None = None
    p95_ms: float | None = None
    gb_per_s: float | None = None
    """Payload over wall time, GB/s (1e9 bytes)."""


class StoreFacts(FactGroup):
    """Outcome of the round trip through a real store."""

    ran: bool = False
    cause: str = ""
    """Empty on success, else what failed, in words."""
    sizes_bytes: tuple[int, ...] = ()
    get_ms: tuple[float, ...] = ()
    megabytes_per_s: float | None = None
    protocol: str | None = None
    """Transport that was used: `tcp` or `rdma`."""
    spans_hosts: bool | None = None
    """Producer and consumer ran on different hosts, so the payload must cross an interface."""
    interface: str | None = None
    """Network device whose counters were read."""
    payload_bytes: int | None = None
    """Payload that had to cross the link."""
    crossed_bytes: int | None = None
    """What the interface's counters gained meanwhile."""
    local_buffer_bytes: int | None = None
    segment_bytes: int | None = None
    """All segments together."""
    writer_threads: int | None = None
    transfers: tuple[StoreTransfer, ...] = ()
