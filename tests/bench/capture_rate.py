"""Rows `capture_rate`: output tokens/s of a capture against plain generation by the same server without it.

Same prompts as token ids, same number of requests at once, answers of the same length. Both servers are up
and take turns; the one that waits does nothing.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
from endless import Case, Over, endless_target, overrides
from rows import Row, compared, machine
from servers import Busy, Extracting, Workplace, extracting, patient, plain, workplace

from tasks.serve.vllm_http import Server
from tasks.stream.canary import TEXTS
from tasks.stream.log import INDEX, HiddenStateLog, IndexEntry

GOAL = 0.95
POLL_S = 0.2
_LONGEST_ANSWER_S = 3600.0
_WARM_UP_TOKENS = 8


@dataclass(frozen=True)
class RateSize:
    """What is captured in each run: one answer for each place, so that all end together, the hardest case."""

    cases: tuple[Case, ...] = ((8, 256), (16, 256), (8, 1024), (16, 1024))
    runs: int = 3

    @property
    def most(self) -> Case:
        """Requests at once and answer length that the servers must allow."""
        return max(case[0] for case in self.cases), max(case[1] for case in self.cases)


@dataclass(frozen=True)
class Asked:
    """One request of the plain side, as the capture had it."""

    prompt_ids: tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True)
class Captured:
    """What one capture did."""

    entries: tuple[IndexEntry, ...]
    asked: tuple[Asked, ...]
    """The same requests for a plain server."""
    began: float | None
    """When answers, the canary left out, were first seen under way; None if they were too short."""
    ended: float
    """When the last sample was in the index."""
    busy_s: float
    """In which the server had something to do; the canary is in it."""

    @property
    def generated(self) -> int:
        """Output tokens."""
        return sum(entry.answer_tokens for entry in self.entries)

    @property
    def seconds(self) -> float:
        """From the first answer under way to the last sample in the log."""
        return self.ended - _seen(self.began)

    @property
    def trainable(self) -> int:
        return sum(entry.trainable_tokens for entry in self.entries)


@dataclass
class Speeds:
    """Output tokens/s of one case, a value for each run."""

    plain: list[float] = field(default_factory=list)
    capture: list[float] = field(default_factory=list)


def rows(folder: Path, size: RateSize | None = None) -> list[Row]:
    """A row for each case."""
    size = size or RateSize()
    endless = endless_target(folder)
    speeds: dict[Case, Speeds] = {case: Speeds() for case in size.cases}
    over = overrides(folder, endless, size.most, size.most[1])
    with (
        workplace(folder, "bench-rate", over) as place,
        extracting(place) as target,
        plain(place, place.profile.serve.served_name) as server,
    ):
        for run in range(size.runs):
            for case, found in speeds.items():
                one = overrides(folder, endless, case, size.most[1])
                captured = capture_once(target, place.run.path / f"stream-{run}-{case[0]}-{case[1]}", one)
                found.capture.append(captured.generated / captured.seconds)
                if run == 0:
                    warm_up(server, captured.asked, case[0])
                generated, seconds, _ = plain_once(server, captured.asked, case[0])
                found.plain.append(generated / seconds)
    return rate_rows(speeds, size)


def short(folder: Path) -> list[Row]:
    """Answers of 256 tokens."""
    return rows(folder, RateSize(((8, 256), (16, 256))))


def long_8(folder: Path) -> list[Row]:
    """Eight answers of 1,024 tokens."""
    return rows(folder, RateSize(((8, 1024),)))


def long_16(folder: Path) -> list[Row]:
    """Sixteen answers of 1,024 tokens."""
    return rows(folder, RateSize(((16, 1024),)))


def capture_once(target: Extracting, folder: Path, over: Over, poll_s: float = POLL_S) -> Captured:
    """Capture into `folder` with a client whose profile has the fields `over`."""
    place: Workplace = replace(target.place, profile=patient(over))
    with Busy(target.server, len(TEXTS), poll_s) as busy:
        captures = replace(target, place=place).capture(folder)
    log = HiddenStateLog(folder / captures.log)
    entries = sorted(log.entries(), key=lambda entry: entry.i)
    # A sample is in the log with its line of the index; what the client does after the last is no capture.
    ended = (log.folder / INDEX).stat().st_mtime
    asked = [
        Asked(tuple(log.load(entry)[1][: entry.prompt_tokens].tolist()), entry.answer_tokens)
        for entry in entries
    ]
    return Captured(tuple(entries), tuple(asked), busy.began, ended, busy.seconds)


def warm_up(server: Server, asked: Sequence[Asked], concurrency: int) -> None:
    """The first batch of a server takes longer; the capturing one had its canary."""
    first = [replace(one, max_tokens=min(one.max_tokens, _WARM_UP_TOKENS)) for one in asked]
    asyncio.run(_generate(server, first, concurrency))


def plain_once(
    server: Server, asked: Sequence[Asked], concurrency: int, poll_s: float = POLL_S
) -> tuple[int, float, float]:
    """Answer all; output tokens, seconds from the first under way to the last answer, and busy seconds."""
    with Busy(server, len(TEXTS), poll_s) as busy:
        generated = asyncio.run(_generate(server, asked, concurrency))
        ended = time.time()
    return generated, ended - _seen(busy.began), busy.seconds


def _seen(began: float | None) -> float:
    if began is None:
        raise AssertionError("the requests were never seen running: the answers are too short to be measured")
    return began


async def _generate(server: Server, asked: Sequence[Asked], concurrency: int) -> int:
    """Ask for all, `concurrency` at once; returns the tokens generated.

    Raises:
        AssertionError: An answer has another length than the capture's.
    """
    waiting, total = list(reversed(asked)), 0
    limits = httpx.Limits(max_connections=concurrency)
    async with httpx.AsyncClient(timeout=_LONGEST_ANSWER_S, trust_env=False, limits=limits) as client:

        async def worker() -> None:
            nonlocal total
            while waiting:
                one = waiting.pop()
                body = {
                    "model": server.served_name,
                    "prompt": list(one.prompt_ids),
                    "max_tokens": one.max_tokens,
                    "temperature": 0.0,
                    "return_token_ids": True,
                    "add_special_tokens": False,
                }
                response = await client.post(f"{server.url}/v1/completions", json=body)
                response.raise_for_status()
                got = len(response.json()["choices"][0]["token_ids"])
                if got != one.max_tokens:
                    raise AssertionError(f"{got} tokens generated, the capture had {one.max_tokens}")
                total += got

        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(worker())
    return total


def rate_rows(speeds: dict[Case, Speeds], size: RateSize) -> list[Row]:
    """Output tokens/s of capture over plain generation, medians over the runs."""
    return [
        compared(
            f"capture_rate, {concurrency} x {length}",
            statistics.median(found.capture),
            statistics.median(found.plain),
            GOAL,
            "output tokens/s",
            f"at least {GOAL}; {concurrency} at once, one answer of {length} tokens each, medians of "
            f"{size.runs} runs in turns (capture {_shown(found.capture)}; plain {_shown(found.plain)}), the "
            f"canary at a capture's start left out, both servers up; {machine()}",
        )
        for (concurrency, length), found in speeds.items()
    ]


def _shown(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.4g}" for value in values)
