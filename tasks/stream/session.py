"""One session of a capture: its connections to target and store, from the first request to an empty store."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path

from tasks.errors import RetrainError, ServiceError, StoreError
from tasks.serve.vllm_http import Server
from tasks.stream.answerer import PROBES, AnswererCheck, refuse_shorter, served_by
from tasks.stream.asking import Asker
from tasks.stream.backoff import BackOff
from tasks.stream.budget import ByteBudget, readers_for
from tasks.stream.canary import open_canary
from tasks.stream.collector import Collector
from tasks.stream.head import open_head
from tasks.stream.keys import key_pattern
from tasks.stream.log import IndexEntry, LogWriter
from tasks.stream.outage import Outage, was_outage
from tasks.stream.probe import Prober
from tasks.stream.progress import CaptureProgress
from tasks.stream.reading import MOST_READERS, SampleReader
from tasks.stream.requests import read_requests
from tasks.stream.sample import Request, SampleRejected, Shape
from tasks.stream.settings import ANSWER_KEY_ENV, API_KEY_ENV, CaptureFiles, CaptureSettings
from tasks.stream.store import StoreClient
from tasks.stream.sweeping import Sweeper, engine_is_idle
from tasks.stream.tally import Tally

_SWEEP_EVERY_S = 5.0
_HURRY_S = 4.0
"""A client that is being ended has this long to empty the store; the next start does the rest."""


class Session:
    """Captures what is missing and leaves nothing in the store.

    Args:
        largest_bytes: Most bytes that one sample may need.
        address: What this client gives to the store as its own address.

    Raises:
        StoreError: The store cannot be reached.
    """

    def __init__(
        self,
        settings: CaptureSettings,
        files: CaptureFiles,
        log: LogWriter,
        tally: Tally,
        show: CaptureProgress,
        largest_bytes: int,
        address: str,
    ):
        self._settings = settings
        self._files = files
        self._log = log
        self._tally = tally
        self._show = show
        self._key = os.environ.get(API_KEY_ENV)
        self._session_id = secrets.token_hex(4)
        self._store = StoreClient(
            settings.store_master,
            host=address,
            protocol=settings.store_protocol,
            device=settings.store_device,
            local_buffer_bytes=settings.store_local_buffer_bytes,
        )
        server = Server(settings.url.rstrip("/").removesuffix("/v1"), settings.served_name, self._key)
        self._server = server
        self._sweeper = Sweeper(
            self._store, settings.run_id, lambda: engine_is_idle(server), settings.sweep_quiet_s
        )
        self._shape = Shape(settings.layers, settings.hidden_size, settings.dtype)
        self._budget = ByteBudget(settings.in_flight_bytes)
        self._reader = SampleReader(
            self._store,
            self._sweeper,
            log,
            self._shape,
            settings.read_timeout_s,
            readers_for(settings.store_local_buffer_bytes, largest_bytes, MOST_READERS),
        )
        tally.swept = lambda: self._sweeper.swept
        tally.lease_retries = lambda: self._store.lease_retries
        tally.peak_in_flight_bytes = lambda: self._budget.peak

    def sweep_dead(self, run_id: str) -> int:
        """Remove what a capture that died left in the store; returns how many objects."""
        removed = self._store.remove_matching(key_pattern(run_id))
        if removed:
            print(f"removed {removed} objects that the dead capture of {run_id} had left", flush=True)
        return removed

    def capture(self, finished: Container[int]) -> None:
        """Ask for every prompt that is not in `finished`.

        Raises:
            RetrainError: Something that asking again cannot mend.
        """
        self._sweeper.clear()
        asyncio.run(self._collect(finished))

    def close(self, *, hurried: bool) -> bool:
        """Empty the store of this run; returns whether it is and stays empty.

        Args:
            hurried: An error is on its way already: do not wait for long, and do not hide it.

        Raises:
            StoreError: Objects still appear.
        """
        if hurried:
            self._log.abort()
        self._reader.close()
        try:
            return self._sweeper.finish(_HURRY_S if hurried else self._settings.sweep_limit_s)
        except StoreError as error:
            if not hurried:
                raise
            print(f"the store could not be emptied: {error}", flush=True)
            return False
        finally:
            self._store.close()

    async def _collect(self, finished: Container[int]) -> None:
        settings = self._settings
        store = self._outage("store's master", self._store_is_up, settings.store_master, StoreError)
        self._tally.store_outages = lambda: (store.count, store.seconds)
        servers: dict[str, Outage] = {}
        self._tally.server_outages = lambda: (
            sum(server.count for server in servers.values()),
            sum(server.seconds for server in servers.values()),
        )
        async with contextlib.AsyncExitStack() as stack:
            asker = await stack.enter_async_context(
                self._asker(settings.url, settings.served_name, self._key, "serve")
            )
            servers[asker.url] = self._outage("target", asker.is_up, asker.url, ServiceError)
            answerer = None
            if settings.answers.answer_url:
                named = settings.answers.answer_model or settings.served_name
                key = os.environ.get(ANSWER_KEY_ENV)
                answerer = await stack.enter_async_context(
                    self._asker(settings.answers.answer_url, named, key, "stream.answer_url")
                )
                up = self._outage("answering server", answerer.is_up, answerer.url, ServiceError)
                servers.setdefault(answerer.url, up)
            await stack.enter_async_context(self._sweeping())
            await self._ask_all(asker, answerer, servers, store, finished)

    async def _ask_all(
        self,
        asker: Asker,
        answerer: Asker | None,
        servers: Mapping[str, Outage],
        store: Outage,
        finished: Container[int],
    ) -> None:
        """Prove with canaries that the states are those of the answers, then capture beside further ones."""
        settings, back_off = self._settings, BackOff(self._settings.back_off_s)
        requests = read_requests(self._files.requests, finished)
        first = next(requests, None)
        if first is None:
            return  # this session only sweeps: the target need not answer, nor prove anything

        async def outage(error: SampleRejected) -> bool:
            return await was_outage(error, servers, store)

        prober = Prober(asker, self._reader, outage, back_off, settings.life_s)
        canary = open_canary(settings, prober, self._files.canary)
        self._reader.check = canary.sample

        def done(entry: IndexEntry | None) -> None:
            self._show.sample(entry)
            canary.sample_done()

        collector = Collector(
            asker=asker,
            answerer=answerer,
            reader=self._reader,
            shape=self._shape,
            budget=self._budget,
            tally=self._tally,
            was_outage=outage,
            back_off=back_off,
            max_attempts=settings.max_attempts,
            sample_timeout_s=settings.life_s,
            lost=self._files.lost,
            set_aside=self._files.set_aside,
            on_sample=done,
        )
        await canary.check()
        opening = [first]
        if answerer is not None:
            opening += islice(requests, PROBES - 1)
            head, _ = open_head(Path(settings.tokenizer), settings.dtype)
            check = AnswererCheck(answerer, prober, outage, back_off, head)
            await self._require_same_model(check, answerer, opening)
        await canary.beside(collector.run(chain(opening, requests), settings.concurrency))

    async def _require_same_model(
        self, check: AnswererCheck, answerer: Asker, requests: Sequence[Request]
    ) -> None:
        """Refuse answers of a server that does not serve the target, before the first sample."""
        answers = self._settings.answers
        named = answers.answer_model or self._settings.served_name
        server = Server(answerer.url, named, os.environ.get(ANSWER_KEY_ENV))
        answering = await asyncio.to_thread(served_by, server)
        refuse_shorter(answering, self._settings.max_model_len)
        target = await asyncio.to_thread(served_by, self._server)
        await check.same_answers(requests, target, answering)

    def _asker(self, url: str, served_name: str, key: str | None, field: str) -> Asker:
        return Asker(
            url,
            served_name,
            key,
            run_id=self._settings.run_id,
            session=self._session_id,
            concurrency=self._settings.concurrency,
            timeout_s=self._settings.answer_timeout_s,
            field=field,
        )

    async def _store_is_up(self) -> bool:
        return await asyncio.to_thread(self._store.is_up)

    def _outage(
        self, what: str, is_up: Callable[[], Awaitable[bool]], where: str, kind: type[RetrainError]
    ) -> Outage:
        def lost(seconds: float) -> RetrainError:
            return kind(
                f"the {what} does not accept connections any more: {seconds:.0f} s after it went away it was "
                "not back",
                where=where,
                hint="see its log; `retrain-dspark resume` continues with what is missing; "
                "stream.server_wait_s says how long to wait",
            )

        return Outage(
            is_up,
            self._settings.server_wait_s,
            lost,
            lambda seconds: self._show.write(f"the {what} is down, waiting since {seconds:.0f} s"),
            BackOff(self._settings.back_off_s, most_s=5.0),
        )

    @contextlib.asynccontextmanager
    async def _sweeping(self) -> AsyncIterator[None]:
        """Look for the objects of given-up requests now and then, while others are asked."""

        async def sweep() -> None:
            while True:
                await asyncio.sleep(_SWEEP_EVERY_S)
                if self._log.waiting:  # that no sample comes is no stall then; the trainer has its own limit
                    self._show.write("the window is full: waiting for the trainer")
                with contextlib.suppress(StoreError):  # a store that is down holds nothing to sweep
                    await asyncio.to_thread(self._sweeper.sweep_orphans)

        task = asyncio.create_task(sweep())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
