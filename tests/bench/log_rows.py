"""Rows of the hidden-state log: receiving into it durably, opening and reading a large one."""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import torch
from consume import interleaved, rate_row
from rows import Row
from store_objects import HIDDEN, LAYERS, MIB, StoredSample, sample_of, stored

from tasks.stream.checksum import check_seal
from tasks.stream.log import HiddenStateLog, LogWriter
from tasks.stream.store import StoreClient, check

GOAL = 0.80
LARGE, SMALL = 100_000, 1_000
THREADS = 2
_OPEN_LIMIT_S = 1.0


def rows(folder: Path) -> list[Row]:
    """What `make bench` prints."""
    return [log_row(folder), *large_log_rows(folder)]


def log_row(folder: Path, repetitions: int = 5, count: int = 16, size_mib: int = 16) -> Row:
    """Receiving to the durable log against the slower of bare get and bare file write, same threads.

    Args:
        folder: On the disk that is measured.
    """
    samples = [sample_of(f"bench-log-{number}", size_mib * MIB) for number in range(count)]
    # The same threads throughout: the store's client keeps a registered buffer for each.
    with stored(samples, folder) as client, ThreadPoolExecutor(THREADS) as threads:
        sides = [_Receive(client, folder / "log"), _BareGet(client, samples), _BareWrite(samples, folder)]
        runs = [partial(side, threads, samples) for side in sides]
        ours, get, write = interleaved(runs, repetitions)
    total = sum(one.bytes for one in samples)
    slower = max(get, write)
    conditions = (
        f"{count} samples of {size_mib} MiB, {THREADS} threads; baseline: the slower of bare get "
        f"({total / get / 1e9:.3g} GB/s) and bare write, fsync, rename, fsync of the folder "
        f"({total / write / 1e9:.3g} GB/s); medians of {repetitions}"
    )
    return rate_row("log, received to durable", total, ours, slower, GOAL, conditions)


class _Receive:
    """Get, check the seal, append: the tensors are views of the read buffer."""

    def __init__(self, client: StoreClient, folder: Path):
        self._client = client
        self._folder = folder

    def __call__(self, threads: ThreadPoolExecutor, samples: Sequence[StoredSample]) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._log = LogWriter(self._folder)
        list(threads.map(self._take, range(len(samples)), samples))
        self._log.close()

    def _take(self, number: int, one: StoredSample) -> None:
        data = self._client.get(one.key, one.bytes)
        check_seal(data)
        ids = torch.frombuffer(data, dtype=torch.int64, count=one.rows)
        states = torch.frombuffer(
            data, dtype=torch.float32, count=one.rows * LAYERS * HIDDEN, offset=8 * one.rows
        )
        self._log.append(
            i=number,
            prompt_id=one.key,
            domain="qa",
            split="train",
            prompt_tokens=8,
            answer_ids=[*ids[8:].tolist(), 0],
            finish_reason="stop",
            hidden_states=states.view(one.rows, LAYERS, HIDDEN),
            token_ids=ids,
        )


class _BareGet:
    """`get_into` and nothing else, each thread into a registered buffer of its own."""

    def __init__(self, client: StoreClient, samples: Sequence[StoredSample]):
        self._client = client
        self._free: SimpleQueue[ctypes.Array[ctypes.c_char]] = SimpleQueue()
        for _ in range(THREADS):
            buffer = (ctypes.c_char * max(one.bytes for one in samples))()
            address = ctypes.addressof(buffer)
            check("register_buffer", "bare get", client.raw.register_buffer(address, len(buffer)))
            self._free.put(buffer)

    def __call__(self, threads: ThreadPoolExecutor, samples: Sequence[StoredSample]) -> None:
        list(threads.map(self._get, range(len(samples)), samples))

    def _get(self, _: int, one: StoredSample) -> None:
        buffer = self._free.get()
        if self._client.raw.get_into(one.key, ctypes.addressof(buffer), one.bytes) != one.bytes:
            raise RuntimeError(f"get_into of {one.key} failed")
        self._free.put(buffer)


class _BareWrite:
    """The same bytes to files of the same names, with the same waits for the disk."""

    def __init__(self, samples: Sequence[StoredSample], folder: Path):
        self._folder = folder / "bare"
        self._data = random.Random(0).randbytes(max(one.bytes for one in samples))

    def __call__(self, threads: ThreadPoolExecutor, samples: Sequence[StoredSample]) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        list(threads.map(self._write, range(len(samples)), samples))

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
