"""One short greedy request of our own, taken the whole way: asked, read from the store, verified, removed."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass

from torch import Tensor

from tasks.errors import ServiceError, StoreError
from tasks.stream.asking import Asker
from tasks.stream.sample import Answer, Request, SampleRejected, Shape, verify
from tasks.stream.store import ERROR_SUFFIX, StoreClient

FIRST_NUMBER = 1_000_000_000
"""Probes are numbered from here, far above any prompt; their keys are swept with the run's."""
_ATTEMPTS = 3
_POLL_S = 0.02
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
        read_timeout_s: Longest wait for a probe's states after its answer.
    """

    def __init__(self, asker: Asker, store: StoreClient, shape: Shape, read_timeout_s: float):
        self._asker = asker
        self._store = store
        self._shape = shape
        self._read_timeout_s = read_timeout_s
        self._asked = 0

    async def probe(self, prompt_ids: tuple[int, ...], max_new_tokens: int) -> Probed:
        """Answer and states of one prompt.

        Raises:
            ServiceError: The server is gone, or gives nothing usable however often it is asked.
        """
        request = self._request(prompt_ids, max_new_tokens)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await self._attempt(request, attempt)
            except SampleRejected as error:
                last = error
        raise ServiceError(
            f"the canary's request failed {_ATTEMPTS} times, at last with {last}",
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
        answer = await self._asker.ask(request, attempt)
        try:
            await self._arrival(answer.handle)
            states = await asyncio.to_thread(self._read, request, answer)
        finally:
            await asyncio.to_thread(self._forget, answer.handle)
        return Probed(answer, len(request.prompt_ids), states)

    async def _arrival(self, handle: str) -> None:
        deadline = time.monotonic() + self._read_timeout_s
        while not await asyncio.to_thread(self._arrived, handle):
            if time.monotonic() >= deadline:
                raise SampleRejected("read_timeout", f"not in the store after {self._read_timeout_s:.0f} s")
            await asyncio.sleep(_POLL_S)

    def _arrived(self, handle: str) -> bool:
        if self._store.exists(handle):
            return True
        if self._store.exists(handle + ERROR_SUFFIX):
            marker = json.loads(bytes(self._store.get(handle + ERROR_SUFFIX)))
            raise SampleRejected("writer_error", str(marker.get("error", "unknown")))
        return False

    def _read(self, request: Request, answer: Answer) -> Tensor:
        try:
            stored = self._store.get(answer.handle)
        except StoreError as error:
            raise SampleRejected("store_read", error.what) from None
        return verify(stored, answer, request, self._shape)[0]

    def _forget(self, handle: str) -> None:
        if not self._store.remove(handle):
            self._store.remove(handle + ERROR_SUFFIX)
