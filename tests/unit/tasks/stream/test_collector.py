"""The ladder of one prompt: what is asked again, what is not, and what counts as an attempt."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tasks.errors import ServiceError, StoreError
from tasks.stream.asking import ServerUnreachable
from tasks.stream.backoff import BackOff
from tasks.stream.budget import ByteBudget
from tasks.stream.collector import MOST_LOST_IN_A_ROW, Collector
from tasks.stream.outage import Outage, was_outage
from tasks.stream.reading import Log, SampleReader
from tasks.stream.sample import Answer, GivenAnswer, Request, SampleRejected, Shape
from tasks.stream.sweeping import Sweeper
from tasks.stream.tally import Tally

ANSWER = Answer((1, 2, 3), "stop", {"handle": "k"})


class Target:
    """Asker, answering server and reader in one: raises what `script` gives for (prompt, attempt)."""

    url = "http://target"

    def __init__(self, script: Callable[[int, int], BaseException | None]):
        self.script = script
        self.asked: list[tuple[int, int]] = []
        self.answered = 0
        self.forgotten: list[str] = []
        self.is_down = False

    def request_id(self, request: Request, attempt: int) -> str:
        return f"{request.n}-{attempt}"

    async def ask(self, request: Request, attempt: int) -> Answer:
        self.asked.append((request.n, attempt))
        await asyncio.sleep(0)
        error = self.script(request.n, attempt)
        if error is not None:
            raise error
        given = request.given
        return ANSWER if given is None else Answer(given.ids, given.finish_reason, ANSWER.manifest)

    async def ask_without_states(self, request: Request, attempt: int) -> GivenAnswer:
        self.answered += 1
        return GivenAnswer((1, 2), "stop")

    async def take(self, request: Request, answer: Answer, deadline: float) -> tuple[Any, int]:
        return f"entry {request.n}", 0

    async def wait(self, answer: Answer, deadline: float) -> float:
        return deadline

    async def forget(self, request_id: str, handle: str | None) -> None:
        self.forgotten.append(request_id)

    async def is_up(self) -> bool:
        was_down, self.is_down = self.is_down, False
        return not was_down


def requests(count: int, **changes: Any) -> Iterator[Request]:
    for n in range(count):
        yield Request(n, f"p-{n}", "qa", "train", (5, 6), 4, 0.0, 1.0, 0, **changes)


class Run:
    """Captures `prompts` of a scripted target."""

    def __init__(
        self,
        folder: Path,
        target: Target,
        prompts: Iterator[Request],
        life_s: float = 30.0,
        concurrency: int = 4,
    ):
        self.tally = Tally(folder / "counters.json")
        self.lost_file = folder / "lost.jsonl"
        self.done: list[Any] = []
        self.target = target

        def lost(seconds: float) -> ServiceError:
            return ServiceError("the target does not accept connections any more")

        async def scenario() -> None:
            outage = Outage(target.is_up, 5.0, lost, lambda seconds: None, BackOff(0.001))
            collector = Collector(
                asker=target,  # type: ignore[arg-type]
                answerer=target,  # type: ignore[arg-type]
                reader=target,  # type: ignore[arg-type]
                shape=Shape(1, 2, "float32"),
                budget=ByteBudget(2**20),
                tally=self.tally,
                was_outage=lambda error: was_outage(error, {target.url: outage}, outage),
                back_off=BackOff(0.001, 0.002),
                max_attempts=3,
                sample_timeout_s=life_s,
                lost=self.lost_file,
                set_aside=folder / "set_aside.jsonl",
                on_sample=self.done.append,
            )
            await collector.run(prompts, concurrency)

        asyncio.run(scenario())

    def lost(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lost_file.read_text().splitlines()]


def fails(times: int, error: Callable[[], BaseException], prompt: int = 0) -> Target:
    return Target(lambda n, attempt: error() if n == prompt and attempt <= times else None)


def test_a_failed_attempt_is_asked_again_under_a_new_name_and_swept(tmp_path: Path) -> None:
    run = Run(tmp_path, fails(2, lambda: SampleRejected("server_error")), requests(5))
    assert run.tally.rejected == {"server_error": 2} and run.tally.regenerated == 2
    assert len(run.done) == 5 and run.tally.lost == 0 and run.tally.sources == {"generated": 5}
    assert sorted(run.target.forgotten)[:3] == ["0-1", "0-2", "0-3"]


def test_a_prompt_that_stays_bad_is_lost_with_every_reason(tmp_path: Path) -> None:
    run = Run(tmp_path, fails(9, lambda: SampleRejected("checksum", "xx")), requests(3))
    assert run.lost() == [{"n": 0, "prompt_id": "p-0", "reasons": ["checksum: xx"] * 3}]
    assert run.tally.lost == 1 and run.tally.regenerated == 2 and len(run.done) == 3


def test_a_refused_prompt_is_not_asked_again_and_named(tmp_path: Path) -> None:
    run = Run(tmp_path, fails(9, lambda: SampleRejected("request_refused", "400", final=True)), requests(3))
    assert [row["prompt_id"] for row in run.lost()] == ["p-0"]
    assert run.target.asked.count((0, 1)) == 1 and (0, 2) not in run.target.asked
    assert run.tally.regenerated == 0


def test_a_sample_that_never_fits_is_lost_at_once_with_its_reason(tmp_path: Path) -> None:
    target = Target(lambda n, attempt: None)

    async def take(request: Request, answer: Answer, deadline: float) -> tuple[Any, int]:
        if request.n:
            return "entry", 0
        store: Any = Marked({"error": "one sample has 99 bytes", "reason": "too_large", "waits": 0})
        reader = SampleReader(store, cast(Sweeper, None), cast(Log, None), Shape(1, 2, "float32"), 60.0)
        await reader.wait(answer, deadline)
        raise AssertionError("the marker ends the wait")

    target.take = take  # type: ignore[method-assign]
    run = Run(tmp_path, target, requests(3))
    assert run.lost() == [{"n": 0, "prompt_id": "p-0", "reasons": ["too_large: one sample has 99 bytes"]}]
    assert run.tally.rejected == {"too_large": 1} and run.tally.regenerated == 0
    assert (0, 2) not in target.asked and "0-1" in target.forgotten


class Marked:
    """A store that holds an error marker in place of each sample."""

    def __init__(self, marker: dict[str, Any]):
        self._marker = json.dumps(marker).encode()

    def exists(self, key: str) -> bool:
        return key.endswith(":error")

    def get(self, key: str) -> memoryview:
        return memoryview(self._marker)


def test_down_times_do_not_cost_attempts(tmp_path: Path) -> None:
    target = Target(lambda n, attempt: None)

    def script(n: int, attempt: int) -> BaseException | None:
        if attempt > 3:
            return None
        target.is_down = True
        return ServerUnreachable("server_down", "refused", target.url)

    target.script = script
    run = Run(tmp_path, target, requests(8), concurrency=1)
    assert run.tally.lost == 0 and run.tally.rejected == {"server_down": 24}
    assert "0-1" not in target.forgotten, "a request that reached nobody has nothing to sweep"


def test_a_prompt_that_brings_the_server_down_every_time_is_lost_in_the_end(tmp_path: Path) -> None:
    target = Target(lambda n, attempt: None)

    def script(n: int, attempt: int) -> BaseException | None:
        if n:
            return None
        target.is_down = True
        return ServerUnreachable("connection", "reset", target.url)

    target.script = script
    run = Run(tmp_path, target, requests(3))
    assert [row["prompt_id"] for row in run.lost()] == ["p-0"]
    assert run.target.asked.count((0, 6)) == 1 and (0, 7) not in run.target.asked


def test_many_lost_in_a_row_are_the_servers_fault(tmp_path: Path) -> None:
    target = Target(lambda n, attempt: SampleRejected("request_refused", "400: no", final=True))
    with pytest.raises(ServiceError, match=f"{MOST_LOST_IN_A_ROW} prompts one after the other") as caught:
        Run(tmp_path, target, requests(10_000))
    assert "400: no" in caught.value.what and len(target.asked) < MOST_LOST_IN_A_ROW + 8


def test_one_deadline_holds_for_the_whole_life_of_a_request(tmp_path: Path) -> None:
    target = Target(lambda n, attempt: None)
    plain = target.ask

    async def hangs_once(request: Request, attempt: int) -> Answer:
        if (request.n, attempt) == (0, 1):
            await asyncio.sleep(3600)
        return await plain(request, attempt)

    target.ask = hangs_once  # type: ignore[method-assign]
    run = Run(tmp_path, target, requests(3), life_s=0.5)
    assert set(run.tally.rejected) == {"answer_timeout"} and "0-1" in target.forgotten
    assert len(run.done) == 3 and run.tally.lost == 0


def test_an_answer_of_another_server_is_not_asked_for_twice(tmp_path: Path) -> None:
    run = Run(tmp_path, fails(2, lambda: SampleRejected("store_full")), requests(2, source="served"))
    assert run.target.answered == 2 and run.tally.sources == {"served": 2}
    assert run.tally.target_generated_tokens == 2 and run.tally.target_prompt_tokens == 2 * 3


def test_an_error_that_asking_cannot_mend_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="disk"):
        Run(tmp_path, fails(1, lambda: StoreError("disk")), requests(3))


def test_prompts_are_drawn_when_their_turn_comes(tmp_path: Path) -> None:
    drawn: list[int] = []
    most_ahead = 0

    def counted() -> Iterator[Request]:
        for request in requests(200):
            drawn.append(request.n)
            yield request

    def script(n: int, attempt: int) -> None:
        nonlocal most_ahead
        most_ahead = max(most_ahead, len(drawn) - n)

    Run(tmp_path, Target(script), counted())
    assert most_ahead <= 8, "only those that are asked just now are in memory"
