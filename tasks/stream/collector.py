"""The capture loop: ask, wait for the states, verify, append to the log, remove from the store."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.errors import RetrainError, StoreError
from tasks.stream.asking import Asker
from tasks.stream.budget import ByteBudget
from tasks.stream.log import LogWriter
from tasks.stream.sample import Answer, Request, SampleRejected, Shape, verify
from tasks.stream.store import ERROR_SUFFIX, LeaseExpired, ObjectMissing, StoreClient
from tasks.stream.tally import Tally

if TYPE_CHECKING:
    import torch

_POLL_S = 0.002
_LONGEST_POLL_S = 0.05
_STORE_THREADS = 2


class Collector:
    """Captures requests until each is in the log, set aside, or lost.

    Args:
        asker: Where answers come from.
        store: Where hidden states come from.
        log: Where samples go.
        shape: What each sample must look like.
        budget: Bytes that may wait in the store.
        tally: Counters.
        set_aside: JSONL file for answers that hold nothing to learn.
        max_attempts: Requests for one prompt before it is lost.
        read_timeout_s: Longest wait for a sample after its answer.
        on_sample: Called after each finished prompt.
        check: Called with the states `[T, L, H]` of each verified sample; raises SampleRejected.
    """

    def __init__(
        self,
        *,
        asker: Asker,
        store: StoreClient,
        log: LogWriter,
        shape: Shape,
        budget: ByteBudget,
        tally: Tally,
        set_aside: Path,
        max_attempts: int,
        read_timeout_s: float,
        on_sample: Callable[[], None],
        check: Callable[[torch.Tensor, Request, Answer], None] = lambda *_: None,
    ):
        self._asker = asker
        self._store = store
        self._log = log
        self._shape = shape
        self._budget = budget
        self._tally = tally
        self._set_aside = set_aside
        self._max_attempts = max_attempts
        self._read_timeout_s = read_timeout_s
        self._on_sample = on_sample
        self._check = check
        self._threads = ThreadPoolExecutor(_STORE_THREADS, thread_name_prefix="store")
        self.lost: list[dict[str, Any]] = []

    async def run(self, requests: Sequence[Request], concurrency: int) -> None:
        """Capture all of `requests`, `concurrency` at once.

        Raises:
            RetrainError: Something that asking again cannot mend.
        """
        queue = deque(requests)

        async def worker() -> None:
            while queue:
                await self._capture(queue.popleft())
                self._on_sample()

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(concurrency, len(queue))):
                    group.create_task(worker())
        except BaseExceptionGroup as errors:
            raise _first(errors) from None
        finally:
            self._threads.shutdown(wait=True)

    async def _capture(self, request: Request) -> None:
        reasons = []
        for attempt in range(1, self._max_attempts + 1):
            self._tally.requests += 1
            tokens = len(request.prompt_ids) + request.max_new_tokens
            async with self._budget.reserve(self._shape.expected_bytes(tokens)):
                try:
                    await self._attempt(request, attempt)
                    return
                except SampleRejected as error:
                    reasons.append(str(error))
                    self._tally.reject(error.reason, again=attempt < self._max_attempts)
        self._tally.lost += 1
        self.lost.append({"n": request.n, "prompt_id": request.prompt_id, "reasons": reasons})

    async def _attempt(self, request: Request, attempt: int) -> None:
        answer = await self._asker.ask(request, attempt)
        self._tally.target_prompt_tokens += len(request.prompt_ids)
        self._tally.target_generated_tokens += len(answer.answer_ids)
        try:
            await self._arrival(answer.handle)
            if len(answer.answer_ids) > 1:
                self._tally.store_full_waits += await self._in_thread(self._keep, request, answer)
            else:
                self._put_aside(request, answer)
        finally:
            await self._in_thread(self._forget, answer.handle)

    async def _arrival(self, handle: str) -> None:
        """Wait until the sample is in the store; the writer's error marker ends the wait at once."""
        deadline = time.monotonic() + self._read_timeout_s
        pause_s = _POLL_S
        while True:
            arrived, failure = await self._in_thread(self._look, handle)
            if failure is not None:
                raise SampleRejected("writer_error", failure)
            if arrived:
                return
            if time.monotonic() >= deadline:
                raise SampleRejected("read_timeout", f"not in the store after {self._read_timeout_s:.0f} s")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_POLL_S)

    def _look(self, handle: str) -> tuple[bool, str | None]:
        if self._store.exists(handle):
            return True, None
        if not self._store.exists(handle + ERROR_SUFFIX):
            return False, None
        marker = json.loads(bytes(self._store.get(handle + ERROR_SUFFIX)))
        return False, str(marker.get("error", "unknown"))

    def _keep(self, request: Request, answer: Answer) -> int:
        """Read, verify and log a sample; return how often its put waited for space."""
        try:
            stored = self._store.get(answer.handle, int(answer.manifest["metadata"]["total_aligned_bytes"]))
        except LeaseExpired as error:
            raise SampleRejected("lease_expired", str(error)) from None
        except ObjectMissing as error:
            raise SampleRejected("missing", str(error)) from None
        except StoreError as error:
            raise SampleRejected("store_read", str(error)) from None
        states, ids, waits = verify(stored, answer, request, self._shape)
        self._check(states, request, answer)
        self._log.append(
            i=request.n,
            prompt_id=request.prompt_id,
            domain=request.domain,
            split=request.split,
            prompt_tokens=len(request.prompt_ids),
            answer_ids=answer.answer_ids,
            finish_reason=answer.finish_reason,
            hidden_states=states,
            token_ids=ids,
        )
        return waits

    def _put_aside(self, request: Request, answer: Answer) -> None:
        row = {"n": request.n, "prompt_id": request.prompt_id, "reason": "empty answer"}
        with open(self._set_aside, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")

    def _forget(self, handle: str) -> None:
        if not self._store.remove(handle):
            self._store.remove(handle + ERROR_SUFFIX)

    async def _in_thread(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error to show of several that happened at once."""
    flat: list[BaseException] = []
    for error in errors.exceptions:
        flat.append(_first(error) if isinstance(error, BaseExceptionGroup) else error)
    return next((error for error in flat if isinstance(error, RetrainError)), flat[0])
