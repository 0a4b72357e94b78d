"""Load sweeps as a GPU server gives them, from a small model of its step times.

A step takes a fixed time (weights are read once) and a little more for each token that it computes. A round
with a draft computes K + 1 tokens a request and yields tau of them, so its gain falls with the concurrency.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tasks.evaluate.load.models import LoadPoint, LoadSweep, Percentiles

FIXED_MS, TOKEN_MS, DRAFT_MS = 9.0, 0.18, 1.2
BLOCK = 7


def point(
    arm: str, concurrency: int, tau: float | None = None, noise: float = 1.0, **changes: Any
) -> LoadPoint:
    """One measured point.

    Args:
        tau: Tokens per round; None for an arm without a draft.
        noise: Factor on the speed.
    """
    tokens = concurrency * (BLOCK + 1 if tau else 1)
    step_ms = FIXED_MS + TOKEN_MS * tokens + (DRAFT_MS if tau else 0.0)
    per_user = (tau or 1.0) / step_ms * 1000 * noise
    requests = max(32, 8 * concurrency)
    values: dict[str, Any] = {
        "arm": arm, "concurrency": concurrency, "requests": requests, "failed": 0,
        "seconds": requests * 512 / (per_user * concurrency), "output_tokens": requests * 512,
        "output_tokens_per_s": per_user * concurrency, "tokens_per_s_per_user": per_user,
        "ttft_ms": Percentiles(
            p50=180 + 6 * concurrency, p90=260 + 9 * concurrency, p99=420 + 14 * concurrency
        ),
        "itl_ms": Percentiles(p50=step_ms, p90=step_ms * 1.2, p99=step_ms * 1.9),
        "tau": tau, "tokens_per_step": tau, "draft_tokens": requests * 512 * BLOCK if tau else None,
    }  # fmt: skip
    return LoadPoint(**{**values, **changes})


def sweep(
    arms: dict[str, float | None] | None = None,
    concurrency: Sequence[int] = (1, 2, 4, 8, 16, 32),
    repeats: int = 2,
    deviation: float = 0.01,
    seed: int = 7,
    **changes: Any,
) -> LoadSweep:
    """A whole sweep with repetitions that differ by chance.

    Args:
        arms: Arm -> its tau; None has plain and a draft of 2.9 tokens per round.
        deviation: Standard deviation of the logarithm of a measured speed.
    """
    chance = random.Random(seed)
    points = [
        point(arm, at, tau, 1 + chance.gauss(0, deviation))
        for arm, tau in (arms or {"plain": None, "draft": 2.9}).items()
        for at in concurrency
        for _ in range(repeats)
    ]
    return LoadSweep(points=tuple(points), **changes)
