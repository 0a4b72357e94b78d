"""What a store must offer for a run: buffers, segments, rate, and bytes on the wire. Pure.

Mooncake makes nobody wait. A put into another node's segment is staged in the writer's local buffer, a get in
the reader's; an object that does not fit there, or in the segments, is refused at once and its sample lost.
"""

from __future__ import annotations

import math

GIB = 2**30
MIB = 2**20
BUFFER_MARGIN = 1.25
"""Local buffer over the payload in it: 1.19 was enough in a measurement, 1.01 was not (fragmentation)."""
USABLE_SEGMENT = 0.9
"""Share of the segments below which Mooncake does not evict."""
RATE_MARGIN = 1.5
"""Required rate over the planned one."""
CROSSED_SHARE = 0.9
"""Share of the payload that the counters must show: encapsulation adds bytes, nothing removes any."""


def needed_local_buffer_bytes(largest_tensor_bytes: int, concurrency: int) -> int:
    """Smallest local buffer for `concurrency` writers (producer) or reads at once (trainer)."""
    return math.ceil(BUFFER_MARGIN * concurrency * largest_tensor_bytes)


def local_buffer_shortfall(local_buffer_bytes: int, largest_tensor_bytes: int, concurrency: int) -> str:
    """Empty if the local buffer suffices; else what it should be."""
    needed = needed_local_buffer_bytes(largest_tensor_bytes, concurrency)
    if local_buffer_bytes >= needed:
        return ""
    return (
        f"a local buffer of {said(local_buffer_bytes)} does not hold {concurrency} samples of "
        f"{largest_tensor_bytes / 1e6:,.1f} MB at once: it must have {said(needed)}"
    )


def needed_segment_bytes(in_flight_bytes: int, safety: float = 1.0) -> int:
    """Smallest sum of all segments.

    Args:
        in_flight_bytes: Bytes in the store at once.
        safety: 1 where a budget enforces `in_flight_bytes`; 2 where it is estimated as rate x latency.
    """
    return math.ceil(safety * in_flight_bytes / USABLE_SEGMENT)


def segment_shortfall(segment_bytes: int, in_flight_bytes: int, safety: float = 1.0) -> str:
    """Empty if the segments suffice; else what they should be."""
    needed = needed_segment_bytes(in_flight_bytes, safety)
    if segment_bytes >= needed:
        return ""
    return (
        f"segments of {said(segment_bytes)} in all do not hold {in_flight_bytes / 1e6:,.1f} MB in flight"
        f"{f' {safety:g} times' if safety > 1 else ''}: they must have {said(needed)}"
    )


def required_gb_per_s(tokens_per_s: float, token_bytes: int, margin: float = RATE_MARGIN) -> float:
    """GB/s (1e9 bytes) that hidden states need at a planned rate of tokens."""
    return tokens_per_s * token_bytes / 1e9 * margin


def crossing_shortfall(payload_bytes: int | None, crossed_bytes: int | None) -> str:
    """Empty if the payload went over the expected devices; else what is missing. Not observed is missing."""
    if not payload_bytes:
        return "payload did not cross the network: no object that had to cross it arrived"
    if crossed_bytes is None:
        return "payload did not cross the network as far as known: no device holds the address of an end"
    if crossed_bytes >= CROSSED_SHARE * payload_bytes:
        return ""
    return (
        f"payload did not cross the network: {payload_bytes / 1e6:,.1f} MB were sent, the expected device "
        f"carried {crossed_bytes / 1e6:,.1f} MB"
    )


def said(size_bytes: int) -> str:
    """A size as one would set it: whole GiB, below that whole MiB, rounded up."""
    if size_bytes > GIB - MIB:
        return f"{math.ceil(size_bytes / GIB)} GiB"
    return f"{math.ceil(size_bytes / MIB)} MiB"
