"""`vllm bench serve` in small: takes the arguments that it gets from us, sends requests, writes its result.

It starts in a tenth of a second, where vLLM's import takes ten. Times are not measured: the server says in
its usage how long a token takes, so that tests need no clock. `tests/integration/test_load_generator.py`
holds it against the real one.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


def ask(options: argparse.Namespace, prompt: list[int]) -> dict[str, Any]:
    """One streamed request; an error is a row with `error`."""
    row: dict[str, Any] = {"tokens": 0, "prompt": 1, "seconds": 0.0, "pieces": 0, "error": ""}
    body = {"model": options.model, "prompt": prompt, "stream": True, "max_tokens": 1, **options.extra_body}
    headers = {"Content-Type": "application/json", "X-Concurrency": str(options.max_concurrency or 0)}
    if key := os.environ.get("OPENAI_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    place = urlsplit(options.base_url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port)
    try:
        connection.request("POST", options.endpoint, json.dumps(body), headers)
        answer = connection.getresponse()
        if answer.status != 200:
            return row | {"error": answer.reason}
        for line in answer.read().decode().splitlines():
            if not line.startswith("data: {"):
                continue
            data = json.loads(line.removeprefix("data: "))
            row["pieces"] += bool(data["choices"])
            if usage := data.get("usage"):
                row |= {"tokens": usage["completion_tokens"], "prompt": usage["prompt_tokens"]}
                row["seconds"] = usage["seconds_per_token"]
    except (OSError, http.client.HTTPException) as error:
        row["error"] = f"Traceback\n{type(error).__name__}: {error}"
    finally:
        connection.close()
    return row


def result(options: argparse.Namespace, rows: list[dict[str, Any]]) -> dict[str, Any]:
    good = [row for row in rows if not row["error"]]
    tokens = sum(row["tokens"] for row in good)
    users = options.max_concurrency or 1
    seconds = sum(row["tokens"] * row["seconds"] for row in good) / users or 1.0
    return {
        "duration": seconds,
        "completed": len(good),
        "failed": len(rows) - len(good),
        "total_output_tokens": tokens,
        "output_throughput": tokens / seconds,
        "input_lens": [row["prompt"] for row in rows],
        "output_lens": [row["tokens"] for row in rows],
        "ttfts": [row["seconds"] for row in rows],
        "itls": [[row["seconds"]] * max(0, row["pieces"] - 1) for row in rows],
        "latencies": [row["tokens"] * row["seconds"] for row in rows],
        "start_times": [0.0] * len(rows),
        "queue_times": [0.0] * len(rows),
        "generated_texts": ["secret answer"] * len(rows),
        "errors": [row["error"] for row in rows],
        "max_concurrent_requests": users,
    }


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("backend", "base-url", "endpoint", "model", "dataset-name", "dataset-path", "temperature"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("num-prompts", "num-warmups", "seed", "ready-check-timeout-sec"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("skip-tokenizer-init", "disable-tqdm", "save-result", "save-detailed"):
        parser.add_argument(f"--{name}", action="store_true", required=True)
    parser.add_argument("--extra-body", type=json.loads, required=True)
    parser.add_argument("--result-dir", type=Path, required=True)
    parser.add_argument("--result-filename", required=True)
    parser.add_argument("--max-concurrency", type=int)
    parser.add_argument("--request-rate", type=float)
    options = parser.parse_args()
    prompts = [json.loads(line)["prompt"] for line in Path(options.dataset_path).read_text().splitlines()]
    random.Random(options.seed).shuffle(prompts)
    chosen = [prompts[i % len(prompts)] for i in range(options.num_prompts)]
    with ThreadPoolExecutor(options.max_concurrency or 4) as pool:
        list(pool.map(lambda _: ask(options, chosen[0]), range(options.num_warmups)))
        rows = list(pool.map(lambda prompt: ask(options, prompt), chosen))
    (options.result_dir / options.result_filename).write_text(json.dumps(result(options, rows)))
    print("done", file=sys.stderr)


if __name__ == "__main__":
    main()
