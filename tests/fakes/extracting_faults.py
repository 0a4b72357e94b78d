"""What the fake target does wrong, and when it holds still so that a test can kill something.

A run id that ends with `run-<fault>` names a fault for the first attempt at the first prompt; `--fault F
--every N` gives it to the first attempt of every Nth prompt of any run. Before the answer: http-400,
http-429, http-500, http-503, hang, drop (the connection closes). In the answer: no-handle, no-token-ids,
other-version. In the sample: not-finite, constant, zeros, other-tokens, short-rows. In the store: damaged (a
byte changed after sealing), cut (the end is missing), writer-error (the marker instead), never-written,
late-written. `empty` lets every answer of the run have one token.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

from tasks.stream.probe import FIRST_NUMBER

EMPTY = "empty"
NONE = "none"
PHASES = ("received", "answered", "stored")
"""Moments of a request: nothing is done; the answer is out and the sample is not; the sample is stored."""
_REQUEST_ID = re.compile(r"^(?P<run>.+)-(?P<number>\d+)-(?P<attempt>[0-9a-zA-Z]*[0-9])$")
_FIRST = re.compile(r"[a-z]1$")
_LONGEST_HOLD_S = 120.0


@dataclass(frozen=True)
class RequestName:
    """What an `X-Request-Id` of the capture client tells; a number of None is no prompt's request.

    Canaries are no prompts': no fault and no moment is theirs.
    """

    run: str
    number: int | None = None
    first_attempt: bool = False

    @classmethod
    def parse(cls, request_id: str) -> RequestName:
        found = _REQUEST_ID.match(request_id)
        if found is None or int(found["number"]) >= FIRST_NUMBER:
            return cls(request_id)
        return cls(found["run"], int(found["number"]), bool(_FIRST.search(found["attempt"])))


class Faults:
    """Chooses the fault of each request.

    Args:
        fault: Fault of every `every`th prompt; each prompt has it once.
        every: 0 for none.
    """

    def __init__(self, fault: str = NONE, every: int = 0):
        self._fault, self._every = fault, every
        self._had: set[tuple[str, int]] = set()
        self._lock = threading.Lock()

    def of(self, name: RequestName) -> str:
        """`none`, or the name of a fault."""
        if name.number is None:
            return NONE
        wanted = name.run.rpartition("run-")[2] if "run-" in name.run else NONE
        if wanted == EMPTY or (wanted != NONE and name.number == 0 and name.first_attempt):
            return wanted
        with self._lock:
            seen = (name.run, name.number) in self._had
            self._had.add((name.run, name.number))
        return self._fault if self._every and not seen and name.number % self._every == 0 else NONE


def spoil(fault: str, tensors: dict[str, torch.Tensor]) -> None:
    """Change the tensors of a sample in place."""
    states = tensors["hidden_states"]
    if fault == "not-finite":
        states[0, 0, 0] = float("nan")
    elif fault == "constant":
        states[0, 0] = 1.5
    elif fault == "zeros":
        states.zero_()
    elif fault == "other-tokens":
        tensors["token_ids"][0] += 1


class Moments:
    """Holds one request still at a chosen moment until the test has done its deed.

    The test writes `<folder>/<run>.hold` with `phase count`; at the count-th such moment of that run the
    file becomes `<run>.held`, and the request waits until the test removes it. Other requests go on.

    Args:
        folder: None never holds.
    """

    def __init__(self, folder: Path | None):
        self._folder = folder
        self._counts: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def reach(self, phase: str, name: RequestName) -> None:
        """To be called at each moment of each request."""
        if self._folder is None or name.number is None:
            return
        with self._lock:
            self._counts[name.run, phase] += 1
            held = self._hold(phase, name.run, self._counts[name.run, phase])
        deadline = time.monotonic() + _LONGEST_HOLD_S
        while held is not None and held.exists() and time.monotonic() < deadline:
            time.sleep(0.002)

    def _hold(self, phase: str, run: str, count: int) -> Path | None:
        assert self._folder is not None
        path = self._folder / f"{run}.hold"
        try:
            wanted = path.read_text(encoding="utf-8").split()
        except FileNotFoundError:
            return None
        if wanted != [phase, str(count)]:
            return None
        held = path.with_suffix(".held")
        os.replace(path, held)
        return held
