"""One short greedy request of our own, taken the whole way: asked, read from the store, verified, removed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from torch import Tensor

from tasks.errors import ServiceError
from tasks.stream.asking import Asker
from tasks.stream.backoff import BackOff
from tasks.stream.reading import SampleReader
from tasks.stream.reasons import ANSWER_TIMEOUT
from tasks.stream.sample import Answer, Request, SampleRejected

FIRST_NUMBER = 1_000_000_000
"""Probes are numbered from here, far above any prompt; their keys are swept with the run's."""
_ATTEMPTS = 3
_EXTRACTION = (
    "start the server with method extract_hidden_states, our connector, target.aux_layer_ids plus the last "
    "layer, target.dtype and --no-enable-prefix-caching; see its log"
)


@dataclass(frozen=True)
class Probed:
    """A probe's answer and states."""

    answer: Answer
    prompt_tokens: int
    states: Tensor
    """`[T, L, H]`."""


class Prober:
    """Asks probes.

    Args:
        reader: Takes their states from the store.
        was_outage: Whether an attempt failed because a server was down; returns once it is up again.
        back_off: Pauses between two attempts at a probe.
        timeout_s: Longest life of one attempt: answer, arrival and read.
    """

    def __init__(
        self,
        asker: Asker,
        reader: SampleReader,
        was_outage: Callable[[SampleRejected], Awaitable[bool]],
        back_off: BackOff,
        timeout_s: float,
    ):
        self._asker = asker
        self._reader = reader
        self._was_outage = was_outage
        self._back_off = back_off
        self._timeout_s = timeout_s
        self._asked = 0

    async def probe(self, prompt_ids: tuple[int, ...], max_new_tokens: int) -> Probed:
        """Answer and states of one prompt.

        Raises:
            ServiceError: The server is gone, or gives nothing usable however often it is asked.
        """
        request = self._request(prompt_ids, max_new_tokens)
        failures = excused = 0
        while True:
            try:
                return await self._attempt(request, failures + excused + 1)
            except SampleRejected as error:
                last = error
            if excused < _ATTEMPTS and await self._was_outage(last):
                excused += 1
                continue
            failures += 1
            if failures >= _ATTEMPTS or last.final:
                break
            await asyncio.sleep(self._back_off.wait_s(failures, last.wait_s))
        raise ServiceError(
            f"the canary's request failed {failures} times, at last with {last}",
            where="the target, before or during capture",
            hint=_EXTRACTION,
        )

    def _request(self, prompt_ids: tuple[int, ...], max_new_tokens: int) -> Request:
        number = FIRST_NUMBER + self._asked
        self._asked += 1
        return Request(
            n=number,
            prompt_id=f"canary-{number - FIRST_NUMBER}",
            domain="canary",
            split="evaluate",
            prompt_ids=prompt_ids,
            max_new_tokens=max_new_tokens,
            temperature=0.0,
            top_p=1.0,
            seed=0,
        )

    async def _attempt(self, request: Request, attempt: int) -> Probed:
        """Ask once and take the states; nothing of it stays in the store."""
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        answer: Answer | None = None
        try:
            async with asyncio.timeout_at(deadline):
                answer = await self._asker.ask(request, attempt)
            states = await self._reader.look_at(request, answer, deadline)
        except TimeoutError:
            raise SampleRejected(ANSWER_TIMEOUT, f"no answer in {self._timeout_s:.0f} s") from None
        finally:
            name = self._asker.request_id(request, attempt)
            await self._reader.forget(name, answer.handle if answer else None)
        return Probed(answer, len(request.prompt_ids), states)
