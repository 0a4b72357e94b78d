"""What a row of `make bench` says, and how it is measured."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """How large the synthetic target, draft and answers are; the width is that of the laptop profile."""

    vocab: int = 16_384
    draft_vocab: int = 2048
    hidden: int = 576
    heads: int = 9
    block: int = 6
    documents: int = 6
    prompt_tokens: int = 24
    answer_tokens: int = 32
    anchors: int = 96
    repetitions: int = 5


@dataclass(frozen=True)
class Row:
    """One comparison; `ratio` is `value / baseline`, both measured in turns in one process."""

    stage: str
    name: str
    value: float
    baseline: float
    ratio: float
    goal: float | None
    unit: str
    conditions: str


def in_turns(
    ours: Callable[[], object], plain: Callable[[], object], repetitions: int
) -> tuple[float, float]:
    """Median seconds of both, measured alternately after one warm-up each."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in range(repetitions + 1):
        for work, times in zip((ours, plain), seconds, strict=True):
            started = time.perf_counter()
            work()
            if turn:
                times.append(time.perf_counter() - started)
    return statistics.median(seconds[0]), statistics.median(seconds[1])


def row(
    stage: str, name: str, amount: int, seconds: tuple[float, float], goal: float, conditions: str
) -> Row:
    """A row in tokens per second, from the seconds that `amount` tokens took on both sides."""
    ours, plain = (amount / each for each in seconds)
    ratio = round(ours / plain, 3)
    return Row(stage, name, float(f"{ours:.4g}"), float(f"{plain:.4g}"), ratio, goal, "tokens/s", conditions)


def compared(
    name: str,
    value: float,
    baseline: float,
    goal: float | None,
    unit: str,
    conditions: str,
    stage: str = "stream",
) -> Row:
    """A row from two figures in the same unit; the ratio is that of the figures shown."""
    shown, plain = float(f"{value:.6g}"), float(f"{baseline:.6g}")
    return Row(stage, name, shown, plain, round(shown / plain, 4), goal, unit, conditions)


def cpus() -> str:
    """Machine of a row that computes nothing."""
    return f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}"


def machine() -> str:
    return f"{hardware()}, float32"


def hardware() -> str:
    """The machine, where a row names its type itself."""
    import torch

    return f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
