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
    checksum_mismatches: int = 0
    p50_ms: float | None = None
    p95_ms: float | None = None
    gb_per_s: float | None = None
    """Payload over wall time, GB/s (1e9 bytes)."""


class StoreFacts(FactGroup):
    """Outcome of the round trip through a real store, and the settings that it was made with."""

    ran: bool = False
    cause: str = ""
    """Empty on success, else what failed, in words."""
    cause_id: str = ""
    """Name of the cause, a key of `store_roundtrip_causes.REMEDIES`."""
    failures: dict[str, int] = {}
    """Named cause -> how many puts and gets failed of it."""
    protocol: str | None = None
    """Transport that was used: `tcp` or `rdma`."""
    device: str | None = None
    """RDMA devices that the profile names; empty lets Mooncake choose."""
    spans_hosts: bool | None = None
    """Producer and consumer ran on different hosts, so the payload must cross an interface."""
    interface: str | None = None
    """Network devices whose counters were read, producer's and consumer's."""
    payload_bytes: int | None = None
    """Payload that had to cross the link; of the two placements, the one of which less was seen."""
    crossed_bytes: int | None = None
    """What the counters of both ends gained meanwhile, the smaller of the two."""
    local_buffer_bytes: int | None = None
    segment_bytes: int | None = None
    """All segments together."""
    writer_threads: int | None = None
    readers: int | None = None
    """Samples that one reading client fetches at once."""
    sample_bytes: int | None = None
    """Largest sample of the run."""
    in_flight_bytes: int | None = None
    """Most bytes of samples in the store at once; the run's budget enforces it."""
    required_gb_per_s: float | None = None
    """Rate that the plan needs, margin included; 0 asks only for the path."""
    observed_gb_per_s: float | None = None
    """Largest samples, all writers at once, from the producer's segment: how the run reads."""
    transfers: tuple[StoreTransfer, ...] = ()
