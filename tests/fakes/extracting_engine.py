"""The engine of the fake target: admits requests, generates, and sends samples to a real store."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from extracting_faults import EMPTY, Faults, Moments, RequestName, spoil
from extracting_model import ExtractingModel
from hs_connectors.mooncake_store import VERSION, packed_layout

from tasks.stream.announced import Announced
from tasks.stream.checksum import SEAL_BYTES
from tasks.stream.pinned import PutRefused
from tasks.stream.sealed import SealedStore, enlarge_by_seal

_SLICE_S = 0.01


class Aborted(Exception):
    """The client has gone."""


@dataclass(frozen=True)
class Generation:
    """One request: what it asks and what it is called."""

    request_id: str
    prompt: list[int]
    max_tokens: int
    ignore_eos: bool
    extraction: bool
    """With the states of generated tokens; without, those of the prompt alone."""
    wanted: bool
    """Whether states were asked for at all; nothing is stored for who did not."""

    @property
    def name(self) -> RequestName:
        return RequestName.parse(self.request_id)


@dataclass(frozen=True)
class Result:
    """An answer, and the sample that belongs to it."""

    answer: list[int]
    finish_reason: str
    manifest: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    fault: str


class Engine:
    """What stands behind the HTTP server.

    Args:
        store: Where samples go; it is set up.
        announced: What every manifest says of the target; None says nothing, as upstream's connector.
        concurrency: Requests that run at once; the others wait.
        token_s: Seconds of each generated token.
        late_s: Delay of a sample that is `late-written`.
    """

    def __init__(
        self,
        model: ExtractingModel,
        store: SealedStore,
        faults: Faults,
        moments: Moments,
        announced: Announced | None,
        *,
        concurrency: int,
        token_s: float,
        late_s: float,
        writer_threads: int = 2,
    ):
        self.model, self.faults, self.moments = model, faults, moments
        self._store, self._token_s, self._late_s = store, token_s, late_s
        self._announced = announced
        self._slots = threading.Semaphore(concurrency)
        self._writers = ThreadPoolExecutor(writer_threads, thread_name_prefix="writer")
        self._lock = threading.Lock()
        self._count = 0
        self.running = self.waiting = self.unsaved = 0
        self.concurrency = concurrency
        self.prompt_tokens = self.generated_tokens = 0

    @contextmanager
    def _admitted(self) -> Iterator[None]:
        with self._lock:
            self.waiting += 1
        self._slots.acquire()
        with self._lock:
            self.waiting -= 1
            self.running += 1
        try:
            yield
        finally:
            self._slots.release()
            with self._lock:
                self.running -= 1

    def generate(self, asked: Generation, fault: str, gone: Callable[[], bool]) -> Result:
        """Answer; the sample is not stored yet.

        Args:
            gone: Whether the client has closed its connection.

        Raises:
            Aborted: It has; nothing will be stored.
        """
        with self._admitted():
            self.moments.reach("received", asked.name)
            while fault == "hang":
                self._wait(1.0, gone)
            most = 1 if fault == EMPTY else asked.max_tokens
            answer, reason = self.model.answer(asked.prompt, most, asked.ignore_eos)
            self._wait(self._token_s * len(answer), gone)
            with self._lock:
                # As vLLM keeps the blocks of a finished request until its states are saved.
                self.unsaved += 1
        with self._lock:
            self._count += 1
            self.prompt_tokens += len(asked.prompt)
            self.generated_tokens += len(answer)
            key = re.sub(r"[^a-zA-Z0-9_-]", "_", f"cmpl-{asked.request_id}-0-{self._count:08x}")
        ids = [*asked.prompt, *answer][:-1] if asked.extraction else asked.prompt
        manifest, tensors = self._sample(key, ids, asked.extraction, short=fault == "short-rows")
        spoil(fault, tensors)
        return Result(answer, reason, manifest, tensors, fault)

    def _wait(self, seconds: float, gone: Callable[[], bool]) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if gone():
                raise Aborted
            time.sleep(min(left, _SLICE_S))

    def _sample(
        self, key: str, ids: list[int], extraction: bool, short: bool
    ) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """As the connector describes and sends it; `short` leaves out the first rows, as a cached prefix."""
        states = self.model.states(ids)[2 if short else 0 :]
        tensors = {"hidden_states": states, "token_ids": torch.tensor(ids)}
        spec, total = packed_layout({name: (list(t.shape), t.dtype) for name, t in tensors.items()})
        mode = "all" if extraction else "prompt_only"
        metadata = {"num_tokens": len(ids), "total_aligned_bytes": total, "extract_mode": mode}
        manifest = {"handle": key, "version": VERSION, "tensors": spec, "metadata": metadata}
        if self._announced is not None:
            self._announced.announce(manifest)
        enlarge_by_seal(manifest)
        return manifest, tensors

    def send(self, asked: Generation, result: Result) -> None:
        """Store the sample in a thread of its own, as the connector does after the answer."""
        self._writers.submit(self._send, asked, result)

    def _send(self, asked: Generation, result: Result) -> None:
        try:
            self._save(asked, result)
        finally:
            with self._lock:
                self.unsaved -= 1

    @property
    def usage(self) -> float:
        """Share of the slots that requests and unsaved samples hold."""
        return min(1.0, (self.running + self.unsaved) / self.concurrency)

    def _save(self, asked: Generation, result: Result) -> None:
        if not asked.wanted:
            return
        self.moments.reach("answered", asked.name)
        fault, manifest = result.fault, result.manifest
        if fault == "late-written":
            time.sleep(self._late_s)
        try:
            if fault == "writer-error":
                raise PutRefused.because("store_full", "no space within 45 s", where="store", waits=9)
            if fault in ("damaged", "cut"):
                self._put_damaged(manifest, result.tensors, fault)
            elif fault != "never-written":
                self._store.put_sample(manifest, result.tensors)
        except Exception as error:
            print(f"write failed for {manifest['handle']}: {error}", flush=True)
            self._store.put_error(manifest, str(error))
        self.moments.reach("stored", asked.name)

    def _put_damaged(self, manifest: dict[str, Any], tensors: dict[str, torch.Tensor], fault: str) -> None:
        """Seal under another key, change the bytes, and put them past the sealing writer."""
        scratch = f"scratch-{manifest['handle']}"
        self._store.put_sample({**manifest, "handle": scratch}, tensors)
        raw = self._store._require_store()._store
        data = bytearray(raw.get(scratch))
        if fault == "damaged":
            data[5] ^= 1
        raw.remove(scratch, True)
        raw.put(manifest["handle"], bytes(data[:-SEAL_BYTES] if fault == "cut" else data))
