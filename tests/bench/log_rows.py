"""Rows of the hidden-state log: receiving into it durably, opening and reading a large one."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import random
import shutil
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

import torch
from consume import interleaved, rate_row
from rows import Row, cpus
from store_objects import HIDDEN, LAYERS, MIB, StoredSample, sample_of, stored

from tasks.stream.capture import CLIENT_THREADS
from tasks.stream.log import HiddenStateLog, IndexEntry, LogWriter, WrittenSample
from tasks.stream.reading import COMPLETERS, MOST_READERS, SampleReader
from tasks.stream.sample import Answer, Request, Shape
from tasks.stream.store import StoreClient, check
from tasks.stream.sweeping import Sweeper

GOAL = 0.80
LARGE, SMALL = 100_000, 1_000
SIZES = ((32, 16), (128, 1), (24, 64))
"""Samples and MiB of each, so many that filling the pipeline weighs little; about 1 MiB as on the laptop."""
_OPEN_LIMIT_S = 1.0
_LIMIT_S = 600.0
_PROMPT_TOKENS = 8


def rows(folder: Path) -> list[Row]:
    """Both parts, one after the other."""
    return [*log_rows(folder), *large_log_rows(folder)]


def log_rows(folder: Path, repetitions: int = 7, sizes: Sequence[tuple[int, int]] = SIZES) -> list[Row]:
    """Receiving to the durable log: against the slower of bare get and bare write, and against both at once.

    Args:
        folder: On the disk that is measured.
        sizes: Number of samples and MiB of each, for each row.
    """
    found = []
    for count, size_mib in sizes:
        own = folder / f"{size_mib}-mib"
        own.mkdir()
        found += _log_rows(own, repetitions, count, size_mib)
        shutil.rmtree(own)
    return found


def _log_rows(folder: Path, repetitions: int, count: int, size_mib: int) -> list[Row]:
    samples = [sample_of(f"bench-log-{number}", size_mib * MIB) for number in range(count)]
    with stored(samples, folder) as client, contextlib.ExitStack() as stack:
        sides: dict[str, Side] = {"ours": stack.enter_context(Receive(client, samples, folder / "log"))}
        for threads in sorted({1, MOST_READERS}):
            sides[f"get {threads}"] = stack.enter_context(BareGet(client, samples, threads))
        for threads in sorted({MOST_READERS, COMPLETERS}):
            sides[f"write {threads}"] = stack.enter_context(BareWrite(samples, folder / "bare", threads))
        sides["both"] = stack.enter_context(Both(sides["get 1"], sides[f"write {MOST_READERS}"]))
        seconds = _in_turns(sides, repetitions)
    total = sum(one.bytes for one in samples)
    get, write = (min(v for k, v in seconds.items() if k.startswith(kind)) for kind in ("get", "write"))
    bare = ((name, total / took / 1e9) for name, took in seconds.items() if name not in ("ours", "both"))
    shown = ", ".join(f"{name} threads {rate:.3g}" for name, rate in bare)
    conditions = (
        f"at least {GOAL}; {count} samples of {size_mib} MiB from another process over tcp, read, verified, "
        f"written, on disk and in the index by the product's reader ({MOST_READERS} threads that read, "
        f"{COMPLETERS} that wait for the disk); baseline: the slower of get_into and of write, fsync, "
        f"rename, fsync of the folder, each with the number of threads that is best for it (GB/s: {shown}); "
        f"medians of {repetitions} in turns; {cpus()}"
    )
    beside = (
        f"at least {GOAL}; the same, against get_into and write at the same time, each with the cores that "
        f"the other leaves (one thread and {MOST_READERS}), until both are done"
    )
    name = f"log, {size_mib} MiB"
    return [
        rate_row(name, total, seconds["ours"], max(get, write), GOAL, conditions),
        rate_row(f"{name}, both at once", total, seconds["ours"], seconds["both"], GOAL, beside),
    ]


class Side(Protocol):
    """One of the things that are compared."""

    def prepare(self) -> None:
        """Make room for the next repetition; this is not timed."""

    def __call__(self) -> None:
        """One repetition."""


def _in_turns(sides: Mapping[str, Side], repetitions: int) -> dict[str, float]:
    """Median seconds of each, one after another in every repetition, after one warm-up."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(repetitions + 1):
        for name, side in sides.items():
            side.prepare()
            started = time.perf_counter()
            side()
            if turn:
                seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(times) for name, times in seconds.items()}


class Receive:
    """The product: all samples have been answered and lie in the store; the reader takes them to the log."""

    def __init__(self, client: StoreClient, samples: Sequence[StoredSample], folder: Path):
        self._client = client
        self._folder = folder
        self._answered = [_answered(number, one) for number, one in enumerate(samples)]

    def __enter__(self) -> Receive:
        self._tensor_threads = torch.get_num_threads()
        torch.set_num_threads(CLIENT_THREADS)  # as in the capture client
        self._log = LogWriter(self._folder)
        shape = Shape(LAYERS, HIDDEN, "float32")
        sweeper = Sweeper(self._client, "bench", lambda: True, 0.0)
        # One reader throughout: each of its threads keeps a registered buffer.
        self._reader = SampleReader(self._client, sweeper, self, shape, _LIMIT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()
        self._log.close()
        torch.set_num_threads(self._tensor_threads)

    def prepare(self) -> None:
        """Begin an empty log."""
        self._log.close()
        shutil.rmtree(self._folder)
        self._log = LogWriter(self._folder)

    def __call__(self) -> None:
        asyncio.run(self._take_all())
        if len(self._log.entries) != len(self._answered):
            raise AssertionError(f"{len(self._log.entries)} of {len(self._answered)} samples")

    async def _take_all(self) -> None:
        deadline = asyncio.get_running_loop().time() + _LIMIT_S
        async with asyncio.TaskGroup() as group:
            for request, answer in self._answered:
                group.create_task(self._reader.take(request, answer, deadline))

    @property
    def waits(self) -> int:
        return self._log.waits

    @property
    def waiting(self) -> bool:
        return self._log.waiting

    def write(self, **sample: Any) -> WrittenSample:
        return self._log.write(**sample)

    def complete(self, written: WrittenSample) -> IndexEntry:
        return self._log.complete(written)


def _answered(number: int, one: StoredSample) -> tuple[Request, Answer]:
    """Request and answer of a stored sample, as the server would have given them."""
    prompt = tuple(range(_PROMPT_TOKENS))
    answer_ids = (*range(_PROMPT_TOKENS, one.rows), 0)
    request = Request(number, one.key, "qa", "train", prompt, len(answer_ids), 0.0, 1.0, 0)
    states = {"shape": [one.rows, LAYERS, HIDDEN], "dtype": "torch.float32", "offset": 8 * one.rows}
    manifest = {
        "handle": one.key,
        "tensors": {
            "token_ids": {"shape": [one.rows], "dtype": "torch.int64", "offset": 0},
            "hidden_states": states,
        },
        "metadata": {"total_aligned_bytes": one.bytes},
    }
    return request, Answer(answer_ids, "length", manifest)


class BareGet:
    """`get_into` and nothing else, each thread into a registered buffer of its own."""

    def __init__(self, client: StoreClient, samples: Sequence[StoredSample], threads: int):
        self._client = client
        self._samples = samples
        self._threads = ThreadPoolExecutor(threads)
        self._free: SimpleQueue[ctypes.Array[ctypes.c_char]] = SimpleQueue()
        for _ in range(threads):
            buffer = (ctypes.c_char * max(one.bytes for one in samples))()
            address = ctypes.addressof(buffer)
            check("register_buffer", "bare get", client.raw.register_buffer(address, len(buffer)))
            self._free.put(buffer)

    def __enter__(self) -> BareGet:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()
        while not self._free.empty():
            self._client.raw.unregister_buffer(ctypes.addressof(self._free.get()))

    def prepare(self) -> None:
        """Nothing is left from the last repetition."""

    def __call__(self) -> None:
        list(self._threads.map(self._get, self._samples))

    def _get(self, one: StoredSample) -> None:
        buffer = self._free.get()
        if self._client.raw.get_into(one.key, ctypes.addressof(buffer), one.bytes) != one.bytes:
            raise RuntimeError(f"get_into of {one.key} failed")
        self._free.put(buffer)


class BareWrite:
    """The same bytes to files of the same names, with the same waits for the disk."""

    def __init__(self, samples: Sequence[StoredSample], folder: Path, threads: int):
        self._samples = samples
        self._folder = folder
        self._threads = ThreadPoolExecutor(threads)
        self._data = random.Random(0).randbytes(max(one.bytes for one in samples))

    def __enter__(self) -> BareWrite:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()

    def prepare(self) -> None:
        """Begin with an empty folder."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()

    def __call__(self) -> None:
        list(self._threads.map(self._write, range(len(self._samples)), self._samples))

    def _write(self, number: int, one: StoredSample) -> None:
        temporary = self._folder / f".hs_{number}.tmp"
        descriptor = os.open(temporary, os.O_CREAT | os.O_WRONLY, 0o600)
        rest = memoryview(self._data)[: one.bytes]
        while len(rest):
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
        os.close(descriptor)
        os.replace(temporary, self._folder / f"hs_{number}.safetensors")
        directory = os.open(self._folder, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)


class Both:
    """Two sides at the same time, until the later one is done."""

    def __init__(self, first: Side, second: Side):
        self._sides = (first, second)
        self._threads = ThreadPoolExecutor(len(self._sides))

    def __enter__(self) -> Both:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()

    def prepare(self) -> None:
        for side in self._sides:
            side.prepare()

    def __call__(self) -> None:
        for running in [self._threads.submit(side) for side in self._sides]:
            running.result()


def large_log_rows(folder: Path, repetitions: int = 5, large: int = LARGE, small: int = SMALL) -> list[Row]:
    """Rows `log_open_100k` and `log_random_read`."""
    for count in (large, small):
        _fill(folder / str(count), count)
    return [_open_row(folder / str(large), large, repetitions), _read_row(folder, large, small, repetitions)]


def _fill(folder: Path, count: int) -> None:
    """A log of small samples; it need not survive a power cut."""
    writer = LogWriter(folder, sync=False)
    states, ids = torch.randn(8, 2, 16), torch.arange(8)
    for number in range(count):
        writer.append(
            i=number, prompt_id=f"prompt-{number}", domain="qa", split="train", prompt_tokens=4,
            answer_ids=(4, 5, 6, 7, 2), finish_reason="stop", hidden_states=states, token_ids=ids,
        )  # fmt: skip
    writer.finish()
    writer.close()


def _open_row(folder: Path, count: int, repetitions: int) -> Row:
    seconds = []
    for _ in range(repetitions):
        started = time.perf_counter()
        opened = len(HiddenStateLog(folder).entries())
        seconds.append(time.perf_counter() - started)
        if opened != count:
            raise AssertionError(f"{opened} of {count} samples")
    rate, limit = count / statistics.median(seconds), count / _OPEN_LIMIT_S
    conditions = (
        f"{count:,} small samples, index in the page cache; baseline: all of them in {_OPEN_LIMIT_S:g} s"
    )
    return Row("stream", "log_open_100k", round(rate), round(limit), round(rate / limit, 3), 1.0, "samples/s",
               conditions)  # fmt: skip


def _read_row(folder: Path, large: int, small: int, repetitions: int) -> Row:
    readers = []
    for count in (large, small):
        log = HiddenStateLog(folder / str(count))
        chosen = random.Random(count).sample(log.entries(), min(small, count))
        readers.append(lambda log=log, chosen=chosen: [log.load(entry) for entry in chosen])
    ours, plain = interleaved(readers, repetitions)
    rate, baseline = small / ours, small / plain
    conditions = (
        f"{small:,} random samples of {large:,}, page cache warm; baseline: all {small:,} of a small log; "
        f"0.95 leaves room for noise; medians of {repetitions}"
    )
    return Row("stream", "log_random_read", round(rate), round(baseline), round(rate / baseline, 3), 0.95,
               "samples/s", conditions)  # fmt: skip
