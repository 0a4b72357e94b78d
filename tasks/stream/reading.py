"""From the store to the log: wait for a sample, read it, verify it, write it, wait for the disk, remove it.

A few threads read, verify and write: each holds a buffer as large as a sample, and more would only share the
processor. Other threads, which hold nothing, wait for the disk meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tasks.errors import StoreError
from tasks.stream.log import IndexEntry, WrittenSample
from tasks.stream.models import Split
from tasks.stream.reasons import (
    LEASE_EXPIRED_REASON,
    OBJECT_GONE,
    READ_TIMEOUT,
    STORE_DOWN,
    STORE_READ,
    WRITER_ERROR,
    WRONG_SIZE,
    StoreDown,
    reason_of_marker,
)
from tasks.stream.sample import Answer, Request, SampleRejected, Shape, object_bytes, verify
from tasks.stream.store import ERROR_SUFFIX, LeaseExpired, ObjectMissing, StoreClient, WrongSize
from tasks.stream.sweeping import Sweeper

if TYPE_CHECKING:
    import torch

_POLL_S = 0.002
_LONGEST_POLL_S = 0.05
_LOOKERS = 2
MOST_READERS = 2
COMPLETERS = 8
"""Samples that wait for the disk at once and share its waits: files of 1 MiB are on disk two to three times
as fast as with two (`write` in the row `log, 1 MiB` of `make bench`)."""
Result = TypeVar("Result")


class Log(Protocol):
    """Where samples go; `tasks.stream.log.LogWriter` is the real one."""

    @property
    def waits(self) -> int:
        """How often a sample had to wait for space."""

    @property
    def waiting(self) -> bool:
        """Whether one waits now."""

    def write(
        self,
        *,
        i: int,
        prompt_id: str,
        domain: str,
        split: Split,
        prompt_tokens: int,
        answer_ids: tuple[int, ...],
        finish_reason: str,
        hidden_states: torch.Tensor,
        token_ids: torch.Tensor,
    ) -> WrittenSample:
        """Give one sample to the system; afterwards its tensors are not needed."""

    def complete(self, written: WrittenSample) -> IndexEntry:
        """Put it on disk and into the log, whole or not at all."""


class LastWord:
    """Who has the last word on a sample: the thread that would log it, or the attempt that gave it up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = ""

    def take(self, owner: str) -> bool:
        """True for the first owner, for good."""
        with self._lock:
            self._owner = self._owner or owner
            return self._owner == owner


class SampleReader:
    """Takes samples out of the store.

    Args:
        store: Where hidden states come from.
        sweeper: Removes what nobody will read.
        log: Where they go.
        shape: What each sample must look like.
        read_timeout_s: Longest wait for a sample after its answer.
        readers: Samples read at once. Each reader's buffer grows to the largest sample and is used again.

    Attributes:
        check: Called with the states `[T, L, H]` of each verified sample; raises SampleRejected.
    """

    def __init__(
        self,
        store: StoreClient,
        sweeper: Sweeper,
        log: Log,
        shape: Shape,
        read_timeout_s: float,
        readers: int = MOST_READERS,
    ):
        self._store = store
        self._sweeper = sweeper
        self._log = log
        self._shape = shape
        self._read_timeout_s = read_timeout_s
        self.check: Callable[[torch.Tensor, Request, Answer], None] = lambda *_: None
        # Apart, so that a read that hangs cannot keep others from looking and removing.
        self._readers = ThreadPoolExecutor(readers, thread_name_prefix="read")
        self._completers = ThreadPoolExecutor(COMPLETERS, thread_name_prefix="disk")
        self._lookers = ThreadPoolExecutor(_LOOKERS, thread_name_prefix="look")

    def close(self) -> None:
        """Wait for reads that are under way, and for the disk."""
        self._readers.shutdown(wait=True)
        self._completers.shutdown(wait=True)
        self._lookers.shutdown(wait=True)

    async def take(self, request: Request, answer: Answer, deadline: float) -> tuple[IndexEntry, int]:
        """Bring a sample into the log.

        Args:
            deadline: Time of the event loop by which its read must have ended.

        Returns:
            Its index entry, and how often its put waited for space.

        Raises:
            SampleRejected: It did not come in time, or is not what it should be.
        """
        deadline = await self.wait(answer, deadline)
        word = LastWord()
        reading = _in(self._readers, lambda: self._read(request, answer, word))
        if not await self._ends(reading, deadline) and word.take("attempt"):
            raise SampleRejected(READ_TIMEOUT, "the read did not end before the deadline")
        completing, waits = await reading
        return await _happens_anyway(completing), waits

    async def look_at(self, request: Request, answer: Answer, deadline: float) -> torch.Tensor:
        """Read and verify a sample that stays out of the log; states `[T, L, H]`.

        Raises:
            SampleRejected: As `take`.
        """
        deadline = await self.wait(answer, deadline)
        reading = _in(self._readers, lambda: self._verified(request, answer)[0].clone())
        if not await self._ends(reading, deadline):
            raise SampleRejected(READ_TIMEOUT, "the read did not end before the deadline")
        return await reading

    async def _ends(self, reading: asyncio.Future[Any], deadline: float) -> bool:
        """Whether a read ends in time. Readers that wait for space in a window hold up those behind them:
        that time is the trainer's and does not count."""
        while True:
            waits = self._log.waits
            done, _ = await asyncio.wait([reading], timeout=max(0.0, deadline - _now()))
            if done:
                return True
            if not self._log.waiting and self._log.waits == waits:
                return False
            deadline = _now() + self._read_timeout_s

    async def wait(self, answer: Answer, deadline: float) -> float:
        """Wait until the sample is in the store; the writer's error marker ends the wait early.

        Returns:
            The deadline of its read: `deadline`, or `read_timeout_s` from now if that is sooner.

        Raises:
            SampleRejected: It is not there in time, or the writer gave up.
        """
        deadline = min(deadline, _now() + self._read_timeout_s)
        pause_s = _POLL_S
        while True:
            arrived, failure = await _in(self._lookers, lambda: self._look(answer.handle))
            if failure is not None:
                raise failure
            if arrived:
                return deadline
            if _now() >= deadline:
                raise SampleRejected(READ_TIMEOUT, "not in the store at the deadline")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_POLL_S)

    async def forget(self, request_id: str, handle: str | None) -> None:
        """Remove what an attempt has, or may yet have, in the store."""
        await _in(self._lookers, lambda: self._sweeper.forget(request_id, handle))

    def _look(self, handle: str) -> tuple[bool, SampleRejected | None]:
        """Whether the sample is there, or why it will never be."""
        try:
            if self._store.exists(handle):
                return True, None
            if not self._store.exists(handle + ERROR_SUFFIX):
                return False, None
            marker = json.loads(bytes(self._store.get(handle + ERROR_SUFFIX)))
        except ObjectMissing:
            return False, None
        except (ValueError, StoreError) as error:
            return False, SampleRejected(_reason(error), str(error))
        if not isinstance(marker, dict):
            return False, SampleRejected(WRITER_ERROR, "the writer's error marker cannot be read")
        return False, SampleRejected(reason_of_marker(marker), str(marker.get("error", "unknown")))

    def _verified(self, request: Request, answer: Answer) -> tuple[torch.Tensor, torch.Tensor, int]:
        """States, token ids and waits of a sample; views of this thread's buffer."""
        try:
            stored = self._store.get(answer.handle, object_bytes(answer))
        except StoreError as error:
            raise SampleRejected(_reason(error), str(error)) from None
        return verify(stored, answer, request, self._shape)

    def _read(self, request: Request, answer: Answer, word: LastWord) -> tuple[Future[IndexEntry], int]:
        """The completion of a sample, which happens whoever waits for it, and how often its put waited."""
        states, ids, waits = self._verified(request, answer)
        self.check(states, request, answer)
        if not word.take("reader"):
            raise SampleRejected(READ_TIMEOUT, "the read ended after the deadline")
        written = self._log.write(
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
        return self._completers.submit(self._log.complete, written), waits


def _reason(error: Exception) -> str:
    kinds: dict[type[Exception], str] = {
        StoreDown: STORE_DOWN,
        LeaseExpired: LEASE_EXPIRED_REASON,
        ObjectMissing: OBJECT_GONE,
        WrongSize: WRONG_SIZE,
        StoreError: STORE_READ,
    }
    return next((reason for kind, reason in kinds.items() if isinstance(error, kind)), WRITER_ERROR)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _in(threads: ThreadPoolExecutor, work: Callable[[], Result]) -> asyncio.Future[Result]:
    future = asyncio.get_running_loop().run_in_executor(threads, work)
    # Whoever waits may be cancelled first (a full disk ends all attempts).
    future.add_done_callback(_retrieve)
    return future


def _happens_anyway(work: Future[Result]) -> asyncio.Future[Result]:
    """Work of another thread that goes on, or still begins, when whoever waits for it is cancelled."""
    future = asyncio.wrap_future(work)
    future.add_done_callback(_retrieve)
    return asyncio.shield(future)


def _retrieve(reading: asyncio.Future[Any]) -> None:
    """Look at the outcome of work that nobody may wait for, or asyncio would print its traceback."""
    if not reading.cancelled():
        reading.exception()
