"""Slots of invented drafts, written in the real format: heads that know what will be accepted, or do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from tasks.evaluate.policy.slots import Slots, read_slots


@dataclass(frozen=True)
class Invented:
    """A slots file and what is behind it."""

    path: Path
    slots: Slots


Logits = Callable[[NDArray[np.float64], np.random.Generator], NDArray[np.float64]]


def honest(chance: NDArray[np.float64], _: np.random.Generator) -> NDArray[np.float64]:
    """Logits of a perfectly calibrated head."""
    return np.log(chance) - np.log1p(-chance)


def write(
    path: Path,
    *,
    prompts: int = 40,
    tokens: int = 50,
    positions: int = 4,
    low: float = 0.1,
    high: float = 0.9,
    logits: Logits | None = honest,
    seed: int = 0,
) -> Invented:
    """Draw for every slot a chance between `low` and `high`, and with it whether the token is right."""
    random = np.random.default_rng(seed)
    anchors = prompts * (tokens - 1)
    chance = random.uniform(low, high, size=(anchors, positions))
    anchor = np.tile(np.arange(tokens - 1), prompts)
    known = anchor[:, None] + 1 + np.arange(positions) < tokens
    right = (random.uniform(size=chance.shape) < chance) & known
    tensors = {
        "right": right.astype(np.uint8),
        "known": known.astype(np.uint8),
        "overlap": chance.astype(np.float32),
        "prompt": np.repeat(np.arange(prompts), tokens - 1),
        "anchor": anchor,
        "round": rounds(np.logical_and.accumulate(right, axis=1).sum(axis=1), prompts, tokens),
    }
    if logits is not None:
        tensors["confidence"] = logits(chance, random).astype(np.float32)
    save_file(tensors, path)
    return Invented(path, read_slots(path))


def rounds(accepted: NDArray[np.int64], prompts: int, tokens: int) -> NDArray[np.uint8]:
    """Where rounds start when all draft tokens are verified."""
    started = np.zeros(prompts * (tokens - 1), dtype=np.uint8)
    for prompt in range(prompts):
        anchor = 0
        while anchor < tokens - 1:
            row = prompt * (tokens - 1) + anchor
            started[row] = 1
            anchor += int(accepted[row]) + 1
    return started


@pytest.fixture
def invent(tmp_path: Path) -> Callable[..., Invented]:
    """Writes a slots file; options as for `write`."""
    return lambda name="replay.slots.safetensors", **options: write(tmp_path / name, **options)


@pytest.fixture(scope="session")
def honest_head() -> Logits:
    """Logits of a perfectly calibrated head, to build others from."""
    return honest
