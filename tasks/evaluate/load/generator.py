"""The load generator's command line, environment and result file.

It is `vllm bench serve`, in a process of its own (docs/decisions/0016-load-generator.md).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tasks.evaluate.load.models import Level, Percentiles
from tasks.stage import write_atomic

KEY_ENV = "OPENAI_API_KEY"
"""Where the generator looks for the server's key."""
ENVIRONMENT: Mapping[str, str] = {
    # Its session trusts the environment's proxies; servers under measurement are asked directly.
    "NO_PROXY": "*",
    "no_proxy": "*",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
_KEPT = ("ttfts", "itls", "latencies", "output_lens", "input_lens", "start_times", "queue_times")


def generator_argv(url: str, model: str, level: Level, prompts: Path, result: Path) -> tuple[str, ...]:
    """Command line of one level.

    Prompts are token ids, so no tokenizer is loaded; the length of the answers goes into the request's body,
    since without a tokenizer the generator asks for one token.

    Args:
        url: Base URL without `/v1`.
        model: Served name.
        prompts: File of `write_prompts`.
        result: Where the JSON goes; its folder exists.
    """
    load = (
        ("--max-concurrency", str(level.concurrency))
        if level.request_rate is None
        else ("--request-rate", f"{level.request_rate:g}")
    )
    return (
        sys.executable, "-m", "tasks.evaluate.load.benchmark",
        "--backend", "openai",
        "--base-url", url,
        "--endpoint", "/v1/completions",
        "--model", model,
        "--skip-tokenizer-init",
        "--dataset-name", "custom",
        "--dataset-path", str(prompts),
        "--num-prompts", str(level.requests),
        "--num-warmups", str(level.warm_ups),
        "--seed", str(level.seed),
        "--temperature", "0",
        "--extra-body", json.dumps({"max_tokens": level.max_new_tokens}),
        # The server is known to answer: without this the generator waits ten minutes for one that died.
        "--ready-check-timeout-sec", "0",
        "--disable-tqdm",
        "--save-result",
        "--save-detailed",
        "--result-dir", str(result.parent),
        "--result-filename", result.name,
        *load,
    )  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """What the generator saw, without any text."""

    completed: int
    failed: int
    seconds: float
    output_tokens: int
    output_tokens_per_s: float
    tokens_per_s_per_user: float | None
    ttft_ms: Percentiles
    itl_ms: Percentiles
    tpot_ms: Percentiles
    most_in_flight: int
    first_error: str
    """Last line of the first failed request's error; empty if none failed."""


def read_result(file: Path) -> Measured:
    """Read a result, and keep of the file only the times and lengths of the requests.

    Raises:
        ValueError: It is not a result of the generator.
    """
    try:
        raw: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        measured = _measured(raw)
        write_atomic(file, json.dumps({name: raw[name] for name in _KEPT}))
    except (KeyError, TypeError, OSError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    return measured


def _measured(raw: Mapping[str, Any]) -> Measured:
    good = [i for i, length in enumerate(raw["output_lens"]) if length > 0 and not raw["errors"][i]]
    tpots = [
        1000 * (raw["latencies"][i] - raw["ttfts"][i]) / (raw["output_lens"][i] - 1)
        for i in good
        if raw["output_lens"][i] > 1
    ]
    tpot = percentiles(tpots)
    errors = [error.strip().splitlines()[-1] for error in raw["errors"] if error.strip()]
    return Measured(
        completed=int(raw["completed"]),
        failed=int(raw["failed"]),
        seconds=float(raw["duration"]),
        output_tokens=int(raw["total_output_tokens"]),
        output_tokens_per_s=float(raw["output_throughput"]),
        tokens_per_s_per_user=1000 / tpot.p50 if tpot.p50 else None,
        ttft_ms=percentiles([1000 * raw["ttfts"][i] for i in good]),
        itl_ms=percentiles([1000 * gap for i in good for gap in raw["itls"][i]]),
        tpot_ms=tpot,
        most_in_flight=int(raw["max_concurrent_requests"]),
        first_error=errors[0] if errors else "",
    )


def percentiles(values: Sequence[float]) -> Percentiles:
    """Median, 90th and 99th percentile (linear between neighbours); None for no values."""
    if not values:
        return Percentiles()
    p50, p90, p99 = (float(value) for value in np.percentile(np.asarray(values), (50, 90, 99)))
    return Percentiles(p50=p50, p90=p90, p99=p99)
