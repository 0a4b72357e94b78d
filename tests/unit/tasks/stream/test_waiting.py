"""Pauses between attempts, and waits for a server that went away."""

from __future__ import annotations

import asyncio
import random

import pytest

from tasks.errors import ServiceError
from tasks.stream.backoff import BackOff
from tasks.stream.outage import Outage


def test_pauses_double_with_jitter_up_to_a_limit() -> None:
    back_off = BackOff(1.0, 8.0, random.Random(0))
    for failures, limit in ((1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0), (9, 8.0), (10_000, 8.0)):
        waits = [back_off.wait_s(failures) for _ in range(50)]
        assert limit / 2 <= min(waits) and max(waits) <= limit
        assert len(set(waits)) > 40, "those who failed together do not come back together"


def test_what_the_server_asks_for_counts_up_to_the_limit() -> None:
    back_off = BackOff(1.0, 8.0)
    assert back_off.wait_s(1, at_least_s=5.0) == 5.0 and back_off.wait_s(1, at_least_s=3600.0) == 8.0


class Server:
    """Down for the first `probes` probes."""

    def __init__(self, probes: int):
        self.left = probes
        self.asked = 0
        self.notes: list[float] = []

    async def is_up(self) -> bool:
        self.asked += 1
        self.left -= 1
        await asyncio.sleep(0)
        return self.left < 0

    def outage(self, limit_s: float) -> Outage:
        def lost(seconds: float) -> ServiceError:
            return ServiceError("gone for good")

        return Outage(self.is_up, limit_s, lost, self.notes.append, BackOff(0.001))


def test_all_who_wait_share_one_outage_and_one_probe() -> None:
    server = Server(3)

    async def scenario() -> tuple[list[bool], Outage]:
        outage = server.outage(30.0)
        return await asyncio.gather(*(outage.over() for _ in range(16))), outage

    waited, outage = asyncio.run(scenario())
    assert waited == [True] * 16 and outage.count == 1 and server.asked == 4
    assert len(server.notes) == 3


def test_a_server_that_is_up_was_no_outage() -> None:
    async def scenario() -> bool:
        return await Server(0).outage(1.0).over()

    assert asyncio.run(scenario()) is False


def test_the_wait_has_an_end() -> None:
    with pytest.raises(ServiceError, match="gone for good"):
        asyncio.run(Server(10**9).outage(0.05).over())
