"""Facts of a round trip that went well: the base that tests change."""

from __future__ import annotations

from typing import Any

from tasks.validate.store_facts import StoreFacts, StoreTransfer

GIB = 2**30
MIB = 2**20


def healthy_store(**changes: Any) -> StoreFacts:
    """A round trip between two hosts that shows 5 GB/s where 2.6 are needed."""
    values: dict[str, Any] = {
        "ran": True,
        "protocol": "tcp",
        "device": "",
        "spans_hosts": True,
        "interface": "eth0 -> eth0",
        "payload_bytes": 10**9,
        "crossed_bytes": 1_030_000_000,
        "local_buffer_bytes": 4 * GIB,
        "segment_bytes": 16 * GIB,
        "writer_threads": 4,
        "readers": 1,
        "sample_bytes": 8192 * 86_024,
        "in_flight_bytes": 8 * GIB,
        "required_gb_per_s": 2.6,
        "observed_gb_per_s": 5.0,
        "transfers": (
            StoreTransfer(
                operation="get",
                placement="producer",
                size_bytes=4096,
                concurrency=1,
                succeeded=43,
                p50_ms=0.3,
                p95_ms=0.9,
                gb_per_s=0.01,
            ),
        ),
    }
    return StoreFacts(**{**values, **changes})
