"""What vLLM is told: fields of its speculative configuration, checked against version 0.32."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

ADAPTIVE = "enable_adaptive_verification"
BY_BATCH = "num_speculative_tokens_per_batch_size"
TOKENS = "num_speculative_tokens"
MODEL = "DRAFT"
"""Stands for the draft's folder or repository in a command line."""

ADAPTIVE_NEEDS = (
    f"{ADAPTIVE} needs vLLM 0.28 or newer with Model Runner V2 and full CUDA graphs (no --enforce-eager), an "
    "attention backend that takes query lengths from the device, and neither LoRA nor pipeline parallelism; "
    "it has no field for temperatures and uses the head's own confidences"
)
BY_BATCH_NEEDS = f"{BY_BATCH} is ignored with data parallelism; it was not tried with a DSpark draft here"


def options(base: Mapping[str, Any], tokens: int, adaptive: bool) -> dict[str, Any]:
    """Fields of `--speculative-config` without the draft's `model`; empty without draft tokens.

    Args:
        base: How the draft was measured: method, sampling and rejection.
        tokens: Draft tokens of every round, or the most of an adaptive one.
    """
    if not tokens:
        return {}
    found = {name: value for name, value in base.items() if name != "model"}
    found |= {"method": "dspark", TOKENS: tokens}
    return {**found, ADAPTIVE: True} if adaptive else found


def command_line(fields: Mapping[str, Any]) -> str:
    """The same as arguments of `vllm serve`; empty without fields. `DRAFT` is for the user to replace."""
    if not fields:
        return ""
    return shlex.join(["--speculative-config", json.dumps({**fields, "model": MODEL})])


def by_batch_size(base: Mapping[str, Any], tokens: Mapping[int, int]) -> dict[str, Any]:
    """Fields that let the number of draft tokens follow the requests in a batch; empty if it is one number.

    Args:
        tokens: Concurrency -> best number of draft tokens. Batches between two take that of the larger.
    """
    if len(set(tokens.values())) < 2:
        return {}
    ranges: list[Sequence[int]] = []
    for concurrency in sorted(tokens):
        start = ranges[-1][1] + 1 if ranges else 1
        if ranges and ranges[-1][2] == tokens[concurrency]:
            ranges[-1] = [ranges[-1][0], concurrency, tokens[concurrency]]
        else:
            ranges.append([start, concurrency, tokens[concurrency]])
    return {**options(base, max(tokens.values()), adaptive=False), BY_BATCH: [list(one) for one in ranges]}
