"""What the facts of a round trip mean: every problem by name, worst first. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.validate.store_facts import StoreFacts
from tasks.validate.store_roundtrip_causes import REMEDIES
from tasks.validate.store_roundtrip_rules import (
    crossing_shortfall,
    local_buffer_shortfall,
    segment_shortfall,
)


@dataclass(frozen=True)
class Problem:
    """Why the store will not carry the run.

    Args:
        cause_id: Name of the cause.
        what: What was seen and what is needed.
    """

    cause_id: str
    what: str

    @property
    def remedy(self) -> str:
        return REMEDIES[self.cause_id]


def problems(store: StoreFacts) -> tuple[Problem, ...]:
    """Every problem once; empty if the store carries the run.

    A rule that the settings break comes first, since it names the number to set, and it takes the failures
    of the same cause with it. Facts that are missing are a problem of their own.
    """
    found = [*_settings(store)]
    if not store.ran:
        found.append(Problem("not_observed", "the round trip was not run"))
    elif store.cause:
        known = next((one for one in found if one.cause_id == store.cause_id), None)
        if known:
            found.remove(known)
            found.insert(0, Problem(known.cause_id, f"{known.what}; {store.cause}"))
        else:
            found.append(Problem(store.cause_id or "store_refused", store.cause))
    else:
        found += _measured(store)
    return tuple(found)


def _settings(store: StoreFacts) -> list[Problem]:
    """The capacity rules, as far as the settings are known."""
    found = []
    sample, buffer = store.sample_bytes, store.local_buffer_bytes
    if sample is not None and buffer is not None and store.writer_threads is not None:
        at_once = max(store.writer_threads, store.readers or 1)
        found.append(Problem("local_buffer", local_buffer_shortfall(buffer, sample, at_once)))
    if store.segment_bytes is not None and store.in_flight_bytes is not None:
        short = segment_shortfall(store.segment_bytes, store.in_flight_bytes)
        found.append(Problem("segment_full", short))
    return [one for one in found if one.what]


def _measured(store: StoreFacts) -> list[Problem]:
    """A round trip without a cause still has to show the bytes, the rate and the settings it ran with."""
    if missing := [name for name, value in _needed(store).items() if value is None]:
        return [Problem("not_observed", f"not observed: {', '.join(missing)}")]
    found = []
    if store.spans_hosts and (short := crossing_shortfall(store.payload_bytes, store.crossed_bytes)):
        where = f" ({store.interface})" if store.interface else ""
        found.append(Problem("not_crossed", short + where))
    observed, required = store.observed_gb_per_s or 0.0, store.required_gb_per_s or 0.0
    if observed < required:
        found.append(
            Problem("too_slow", f"{observed:.2f} GB/s were measured, the plan needs {required:.2f} GB/s")
        )
    return found


def _needed(store: StoreFacts) -> dict[str, object]:
    return {
        "observed_gb_per_s": store.observed_gb_per_s,
        "required_gb_per_s": store.required_gb_per_s,
        "spans_hosts": store.spans_hosts,
        "sample_bytes": store.sample_bytes,
        "local_buffer_bytes": store.local_buffer_bytes,
        "segment_bytes": store.segment_bytes,
        "writer_threads": store.writer_threads,
    }


def observed_text(store: StoreFacts) -> str:
    """What was measured, on one line: rate, latency, transport, placement and where the bytes went."""
    if not store.ran:
        return "not run"
    words = []
    if store.observed_gb_per_s is not None:
        words.append(f"{store.observed_gb_per_s:.2f} GB/s")
    small = [one for one in store.transfers if one.concurrency == 1 and one.operation == "get"]
    if small and (least := min(small, key=lambda one: one.size_bytes)).p50_ms is not None:
        words.append(f"{least.p50_ms:.1f} ms (95 %: {least.p95_ms or 0:.1f} ms) for {least.size_bytes} bytes")
    words.append(store.protocol or "unknown transport")
    if store.interface:
        words.append(f"{store.interface}{'' if store.spans_hosts else ', one host'}")
    if failed := sum(store.failures.values()):
        words.append(f"{failed} puts and gets failed")
    return ", ".join(words)


def required_text(store: StoreFacts) -> str:
    """What the plan needs, on one line."""
    rate = store.required_gb_per_s
    needed = f", at least {rate:.2f} GB/s" if rate else ""
    across = ", across the network" if store.spans_hosts else ""
    return f"every payload comes back unchanged{needed}{across}"
