"""Whose requests were they? Readings of a server's `/metrics` around a measurement, and what they show.

vLLM counts requests and tokens of everyone. A request of somebody else that touches the measurement either
ended in it (it is among the finished ones), or was open when it began, or is open when it ends.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from tasks.measure.counters import Scrape, SpecDelta, delta, parse_scrape
from tasks.serve.vllm_http import Server
from tasks.serve.watchdog import counter_sum

FINISHED = "vllm:request_success_total"
_OPEN = ("vllm:num_requests_running", "vllm:num_requests_waiting")
_POLL_S = 0.1


@dataclass(frozen=True)
class Reading:
    """One look at a server."""

    scrape: Scrape
    finished: float
    """Requests that ended since the server began, for whatever reason."""
    open: int
    """Requests that run or wait now."""


def read(server: Server) -> Reading:
    """Raises ServiceError when the page cannot be had or read."""
    text = server.metrics()
    return Reading(
        scrape=parse_scrape(text, where=f"{server.url}/metrics"),
        finished=counter_sum(text, FINISHED),
        open=round(sum(counter_sum(text, name) for name in _OPEN)),
    )


def read_idle(server: Server, patience_s: float) -> Reading:
    """The first reading in which no request is open, or the last one when patience ends.

    After a generator was ended the engine takes a moment to abort what it had asked.

    Raises:
        ServiceError: The server gives no page.
    """
    deadline = time.monotonic() + patience_s
    while True:
        reading = read(server)
        if reading.open == 0 or time.monotonic() >= deadline:
            return reading
        time.sleep(_POLL_S)


@dataclass(frozen=True)
class Ours:
    """The most that our own requests can account for."""

    requests: int
    tokens: int


def change(before: Reading, after: Reading, ours: Ours) -> tuple[SpecDelta, str]:
    """Counter differences, and why they cannot be used (empty if they can): a restart or foreign traffic."""
    grown = delta(before.scrape, after.scrape)
    if grown.invalid:
        return grown, grown.invalid
    finished = round(after.finished - before.finished)
    foreign = []
    if after.open:
        foreign.append(f"{after.open} are open after its end")
    if finished > ours.requests:
        foreign.append(f"{finished} requests ended and {ours.requests} were ours")
    if grown.generated > ours.tokens:
        foreign.append(f"{grown.generated} tokens were generated and {ours.tokens} were ours")
    return grown, f"another client used the server: {'; '.join(foreign)}" if foreign else ""
