"""Bytes in flight stay under the limit, and nobody is forgotten."""

from __future__ import annotations

import asyncio
import random

import pytest

from tasks.errors import UsageError
from tasks.stream.budget import ByteBudget


def test_limit_holds_and_everyone_gets_a_turn() -> None:
    async def scenario() -> tuple[ByteBudget, list[int]]:
        budget = ByteBudget(100)
        order = []

        async def one(number: int, amount: int) -> None:
            async with budget.reserve(amount):
                assert budget.in_flight <= 100
                for _ in range(number % 3):
                    await asyncio.sleep(0)
                order.append(number)

        amounts = random.Random(0).choices(range(1, 101), k=200)
        await asyncio.gather(*(one(i, amount) for i, amount in enumerate(amounts)))
        return budget, order

    budget, order = asyncio.run(scenario())
    assert sorted(order) == list(range(200))
    assert budget.in_flight == 0 and 50 < budget.peak <= 100


def test_large_request_is_not_overtaken() -> None:
    async def scenario() -> list[str]:
        budget = ByteBudget(10)
        order: list[str] = []

        async def one(name: str, amount: int) -> None:
            async with budget.reserve(amount):
                order.append(name)
                await asyncio.sleep(0)

        await asyncio.gather(one("first", 6), one("large", 10), one("small", 1))
        return order

    assert asyncio.run(scenario()) == ["first", "large", "small"]


def test_cancelled_waiter_gives_its_turn_back() -> None:
    async def scenario() -> int:
        budget = ByteBudget(10)
        async with budget.reserve(8):
            waiting = asyncio.create_task(_hold(budget, 8))
            behind = asyncio.create_task(_hold(budget, 2))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait_for(behind, 1)
        return budget.in_flight

    assert asyncio.run(scenario()) == 0


async def _hold(budget: ByteBudget, amount: int) -> None:
    async with budget.reserve(amount):
        await asyncio.sleep(0)


def test_error_inside_releases() -> None:
    async def scenario() -> int:
        budget = ByteBudget(10)
        with pytest.raises(KeyError):
            async with budget.reserve(10):
                raise KeyError
        return budget.in_flight

    assert asyncio.run(scenario()) == 0


def test_sample_larger_than_the_budget_is_refused() -> None:
    async def scenario() -> None:
        async with ByteBudget(10).reserve(11):
            pass

    with pytest.raises(UsageError) as caught:
        asyncio.run(scenario())
    assert caught.value.where == "stream.in_flight_bytes"
