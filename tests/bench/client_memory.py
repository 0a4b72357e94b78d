"""Rows of the capture client's memory, over ten times more samples and against its byte budget.

The client is the process of the stream stage; the target is the small program of the tests that answers as
vLLM with our connector does, so that thousands of samples take minutes.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from rows import Row, compared
from servers import BENCH, Workplace, workplace

from profiles.streaming import in_flight_bytes
from tasks.errors import ServiceError
from tasks.processes.launcher import Handle, ProcessSpec
from tasks.processes.ports import free_port
from tasks.processes.service import running
from tasks.report.progress import SilentProgress
from tasks.serve.models import TargetEndpoint, TargetIdentity
from tasks.serve.store_master import start_master
from tasks.stream.core import capture
from tasks.stream.settings import CaptureFiles
from tests.support.word_target import AUX_LAYERS, HIDDEN, LAYERS, VOCAB, write_tiny_target

FAKE = BENCH.parent / "fakes" / "extracting_server.py"
SLOPE_GOAL = 1.01
ROOM = 256 * 2**20
"""What the client may need beyond its byte budget, bytes: interpreter, torch, the store's client."""
_MIB = 2**20
_POLL_S = 0.02
_START_S = 120.0
_SERVED = "tiny"
_LONGEST = 128
"""Prompt and answer at most, tokens."""
_WORDS = ["rain", "tea", "gold", "maps", "wine", "bread", "snow", "stars", "ships", "glass", "stone", "paper"]


@dataclass(frozen=True)
class MemorySize:
    """How many samples the two captures have."""

    few: int = 200
    many: int = 2000
    max_new_tokens: int = 16
    concurrency: int = 16


@dataclass(frozen=True)
class Memory:
    """Resident memory of one client process over its life, bytes."""

    settled: float
    """Median of the last quarter of the samples taken while it captured."""
    peak: int


def rows(folder: Path, size: MemorySize | None = None) -> list[Row]:
    """Growth over ten times more samples, and the peak against the limit."""
    size = size or MemorySize()
    few, _ = measure(folder / "few", size.few, size)
    many, limit = measure(folder / "many", size.many, size)
    return memory_rows(few, many, limit, size)


def memory_rows(few: Memory, many: Memory, limit: int, size: MemorySize) -> list[Row]:
    """The two rows from what was measured; `limit` is byte budget plus 256 MiB."""
    growth = (
        f"at most {SLOPE_GOAL}; RSS of the client's process once settled, {size.many} samples over {size.few}"
    )
    budget = f"at most 1; highest RSS over stream.in_flight_bytes + {ROOM // _MIB} MiB, {size.many} samples"
    name = "client memory"
    return [
        compared(f"{name}, growth", many.settled / _MIB, few.settled / _MIB, SLOPE_GOAL, "MiB", growth),
        compared(f"{name}, peak", max(many.peak, few.peak) / _MIB, limit / _MIB, 1.0, "MiB", budget),
    ]


def measure(folder: Path, samples: int, size: MemorySize) -> tuple[Memory, int]:
    """Capture `samples` prompts with a fresh client; returns its memory and the limit."""
    folder.mkdir(parents=True)
    over = {
        "prompts": {**_prompts(folder, samples), "train_per_domain": None, "evaluate_per_domain": None},
        "stream": {"max_new_tokens": size.max_new_tokens, "concurrency": size.concurrency},
        "evaluate": {"replay_max_new_tokens": size.max_new_tokens},
        "target": {
            "model": str(write_tiny_target(folder / "target")),
            "source": {"kind": "path", "distribution": "", "version": "", "file": "", "sha256": ""},
            "aux_layer_ids": list(AUX_LAYERS),
            "max_model_len": _LONGEST,
        },
    }
    with workplace(folder, "run-none", over) as place:
        master, address = start_master(place.profile, place.run, place.launcher)
        try:
            port = free_port()
            argv = (
                sys.executable, str(FAKE), "--port", str(port), "--master", address,
                "--model", str(place.target), "--layers", str(len(AUX_LAYERS) + 1),
                "--served-model-name", _SERVED, "--max-model-len", str(_LONGEST),
            )  # fmt: skip
            env = {"PYTHONPATH": str(BENCH.parents[1])}
            spec = ProcessSpec("extracting-server", "serve", "serve", argv, env=env, ports=(port,))
            with running(place.launcher, spec, place.run) as handle:
                _wait_ready(handle)
                memory = _captured(place, folder / "stream", f"http://127.0.0.1:{port}", address, samples)
        finally:
            master.stop()
        return memory, in_flight_bytes(place.profile.stream, place.profile.store) + ROOM


def _prompts(folder: Path, samples: int) -> dict[str, list[str]]:
    """`samples` prompts of random words: none is like another, and all are of one length."""
    draw = random.Random(0)
    texts = [" ".join([f"{n}", *draw.choices(_WORDS, k=12)]) for n in range(samples)]
    for name, chosen in (("train", texts[:-1]), ("evaluate", texts[-1:])):
        lines = [
            json.dumps({"id": f"{name}-{i}", "domain": "qa", "prompt": text}) for i, text in enumerate(chosen)
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {name: [str(folder / f"{name}.jsonl")] for name in ("train", "evaluate")}


def _wait_ready(handle: Handle) -> None:
    deadline = time.monotonic() + _START_S
    while not any(line.startswith("ready") for line in handle.tail()):
        if handle.poll() is not None or time.monotonic() > deadline:
            raise ServiceError(
                f"{handle.spec.name} is not ready", where=str(handle.log), log_tail=handle.tail()
            )
        time.sleep(0.05)


def _captured(place: Workplace, folder: Path, url: str, master: str, samples: int) -> Memory:
    """Run the stage's capture against the server at `url` and watch its client."""
    endpoint = TargetEndpoint(url, _SERVED, None, master, place.profile.store.host)
    with ClientMemory(CaptureFiles(folder)) as watched:
        captures = capture(
            place.profile,
            place.run,
            folder,
            endpoint,
            _identity(),
            place.target,
            place.launcher,
            SilentProgress(),
            lambda: None,
        )
    if captures.samples != samples or captures.counters.lost:
        raise AssertionError(f"{captures.samples} of {samples} samples were captured")
    return watched.memory()


def _identity() -> TargetIdentity:
    """What the program of the tests says that it is."""
    return TargetIdentity(
        served_name=_SERVED,
        model_digest="0" * 64,
        revision=None,
        architecture="none",
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        vocab_size=VOCAB,
        dtype="float32",
        layer_ids=(*AUX_LAYERS, LAYERS),
        tokenizer_digest="0" * 64,
        template_digest="0" * 64,
        engine="none",
        connector="none",
        argv=(),
    )


class ClientMemory:
    """Reads the resident memory of the process that was given these settings, while it captures."""

    def __init__(self, files: CaptureFiles) -> None:
        self._files = files
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._seen: list[int] = []
        self._peak = 0

    def __enter__(self) -> ClientMemory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        process: Path | None = None
        while not self._stop.wait(_POLL_S):
            process = process or process_of(str(self._files.settings))
            status = _status(process) if process else {}
            if "VmRSS" in status:
                self._peak = max(self._peak, status["VmHWM"])
                if any(self._files.log.glob("hs_*.safetensors")):
                    self._seen.append(status["VmRSS"])

    def memory(self) -> Memory:
        """What was seen; the last quarter of a capture has everything loaded that it ever loads."""
        if not self._seen:
            raise AssertionError("the capture client was never seen capturing")
        tail = self._seen[-max(1, len(self._seen) // 4) :]
        return Memory(statistics.median(tail), self._peak)


def process_of(argument: str) -> Path | None:
    """Folder in /proc of the newest capture client with `argument` as a word of its command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if argument in words and "tasks.stream.capture" in words:
            found.append(folder)
    return max(found, key=lambda folder: int(folder.name), default=None)


def _status(process: Path) -> dict[str, int]:
    """`VmRSS` and `VmHWM` of a process, bytes; empty once it has ended."""
    try:
        lines = (process / "status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    fields = dict(line.split(":", 1) for line in lines)
    return {name: int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM") if name in fields}
