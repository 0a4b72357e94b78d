"""The capture loop: ask, wait for the states, verify, append to the log, remove from the store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path

from tasks.errors import RetrainError, ServiceError
from tasks.stream.asking import Asker
from tasks.stream.backoff import BackOff
from tasks.stream.budget import ByteBudget
from tasks.stream.log import IndexEntry
from tasks.stream.reading import SampleReader
from tasks.stream.reasons import ANSWER_TIMEOUT, OVERLOADED, REQUEST_REFUSED, SERVER_DOWN
from tasks.stream.sample import Answer, GivenAnswer, Request, SampleRejected, Shape
from tasks.stream.tally import Tally

MOST_LOST_IN_A_ROW = 20
"""So many prompts lost one after the other are a fault of the server, not of the prompts."""

_NEVER_STARTED = frozenset({SERVER_DOWN, REQUEST_REFUSED, OVERLOADED})
"""After these the engine has no such request, so nothing of it can come into the store."""


class Collector:
    """Captures requests until each is in the log, set aside, or lost.

    Args:
        asker: Where answers with hidden states come from.
        answerer: Who answers `served` prompts; None if nobody does.
        reader: Takes samples from the store to the log.
        shape: What each sample must look like.
        budget: Bytes that may wait in the store.
        tally: Counters.
        was_outage: Whether an attempt failed because a server was down; returns once it is up again.
        back_off: Pauses between two attempts at a prompt.
        max_attempts: Requests for one prompt before it is lost.
        sample_timeout_s: Longest life of one attempt: answer, arrival and read.
        lost: JSONL file for prompts that are lost.
        set_aside: JSONL file for answers that hold nothing to learn.
        on_sample: Called after each finished prompt, with its entry if it was captured.
    """

    def __init__(
        self,
        *,
        asker: Asker,
        answerer: Asker | None,
        reader: SampleReader,
        shape: Shape,
        budget: ByteBudget,
        tally: Tally,
        was_outage: Callable[[SampleRejected], Awaitable[bool]],
        back_off: BackOff,
        max_attempts: int,
        sample_timeout_s: float,
        lost: Path,
        set_aside: Path,
        on_sample: Callable[[IndexEntry | None], None],
    ):
        self._asker = asker
        self._answerer = answerer
        self._reader = reader
        self._shape = shape
        self._budget = budget
        self._tally = tally
        self._was_outage = was_outage
        self._back_off = back_off
        self._max_attempts = max_attempts
        self._sample_timeout_s = sample_timeout_s
        self._lost_file = lost
        self._set_aside_file = set_aside
        self._on_sample = on_sample
        self._lost_in_a_row = 0

    async def run(self, requests: Iterable[Request], concurrency: int) -> None:
        """Capture all of `requests`, `concurrency` at once; they are drawn when their turn comes.

        Raises:
            RetrainError: Something that asking again cannot mend.
        """
        queue = iter(requests)

        async def worker() -> None:
            for request in queue:
                self._on_sample(await self._capture(request))

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(concurrency):
                    group.create_task(worker())
        except BaseExceptionGroup as errors:
            raise _first(errors) from None

    async def _capture(self, request: Request) -> IndexEntry | None:
        """The ladder of one prompt: attempts with growing pauses, down times waited for and not counted."""
        reasons: list[str] = []
        asked = failures = waited_for = 0
        given = request.given
        while True:
            asked += 1
            self._tally.requests += 1
            attempt = _Attempt(request, asked, given)
            try:
                async with self._budget.reserve(self._shape.expected_bytes(request.most_rows)):
                    entry = await self._attempt(attempt)
                self._lost_in_a_row = 0
                return entry
            except SampleRejected as error:
                reasons.append(str(error))
                given = attempt.given
                excused = waited_for < self._max_attempts and await self._was_outage(error)
                waited_for += excused
                failures += not excused
                final = error.final or failures >= self._max_attempts
                self._tally.reject(error.reason, again=not final)
                if final:
                    break
                if not excused:
                    await asyncio.sleep(self._back_off.wait_s(failures, error.wait_s))
        self._lose(request, reasons)
        return None

    async def _attempt(self, attempt: _Attempt) -> IndexEntry | None:
        """Ask once; take the sample from the store, or set it aside. Nothing of it stays in the store.

        Raises:
            SampleRejected: This attempt failed.
        """
        deadline = asyncio.get_running_loop().time() + self._sample_timeout_s
        answer: Answer | None = None
        has_reached = True
        try:
            try:
                async with asyncio.timeout_at(deadline):
                    answer = await self._answer(attempt)
            except TimeoutError:
                raise SampleRejected(ANSWER_TIMEOUT, f"no answer in {self._sample_timeout_s:.0f} s") from None
            if answer is None or len(answer.answer_ids) < 2:
                has_reached = answer is not None
                if answer is not None:
                    await self._reader.wait(answer, deadline)
                self._put_aside(attempt.request)
                return None
            entry, waits = await self._reader.take(attempt.request, answer, deadline)
            self._tally.store_full_waits += waits
            self._tally.count_source(attempt.request.source)
            return entry
        except SampleRejected as error:
            has_reached = error.reason not in _NEVER_STARTED
            raise
        finally:
            if has_reached:
                name = self._asker.request_id(attempt.request, attempt.number)
                await self._reader.forget(name, answer.handle if answer else None)

    async def _answer(self, attempt: _Attempt) -> Answer | None:
        """The answer with its manifest; None if a given one is too short to be worth its states."""
        request = attempt.request
        if request.source == "served" and attempt.given is None:
            assert self._answerer is not None, "settings are checked before the first request"
            attempt.given = await self._answerer.ask_without_states(request, attempt.number)
        if attempt.given is not None and len(attempt.given.ids) < 2:
            return None
        answer = await self._asker.ask(attempt.with_answer(), attempt.number)
        read = len(request.prompt_ids) + (len(attempt.given.ids) - 1 if attempt.given else 0)
        self._tally.target_prompt_tokens += read
        self._tally.target_generated_tokens += 1 if attempt.given else len(answer.answer_ids)
        return answer

    def _put_aside(self, request: Request) -> None:
        self._tally.set_aside += 1
        row = {"n": request.n, "prompt_id": request.prompt_id, "reason": "empty answer"}
        _append(self._set_aside_file, row)

    def _lose(self, request: Request, reasons: list[str]) -> None:
        """List a lost prompt.

        Raises:
            ServiceError: It is one of many in a row: the server is at fault, and every further prompt would
                be lost too.
        """
        self._tally.lost += 1
        self._lost_in_a_row += 1
        _append(self._lost_file, {"n": request.n, "prompt_id": request.prompt_id, "reasons": reasons})
        if self._lost_in_a_row >= MOST_LOST_IN_A_ROW:
            raise ServiceError(
                f"{self._lost_in_a_row} prompts one after the other were lost, the last one "
                f"'{request.prompt_id}' because: {reasons[-1]}",
                where=f"{self._asker.url}; {self._lost_file}",
                hint="see the target's log; `retrain-dspark resume` asks only for what is missing",
            )


class _Attempt:
    """One attempt at a prompt. An answer given by another server outlives an attempt that fails later."""

    def __init__(self, request: Request, number: int, given: GivenAnswer | None):
        self.request = request
        self.number = number
        self.given = given

    def with_answer(self) -> Request:
        return replace(self.request, given=self.given)


def _append(path: Path, row: dict[str, object]) -> None:
    with open(path, "a", encoding="utf-8") as stream:
        stream.write(json.dumps(row) + "\n")


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error to show of several that happened at once."""
    flat: list[BaseException] = []
    for error in errors.exceptions:
        flat.append(_first(error) if isinstance(error, BaseExceptionGroup) else error)
    return next((error for error in flat if isinstance(error, RetrainError)), flat[0])
