"""One end of the store's round trip: `python -m tasks.stream.roundtrip CONFIG.json`.

The producer puts objects of the run's sample sizes, pinned as captures are, and holds them until the consumer
has read, compared and removed each. Both write what they saw into a JSON file; pinned objects vanish when
their producer closes, hence the two processes.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

from tasks.errors import StoreError
from tasks.stream.store import StoreClient


def payload(key: str, size_bytes: int) -> bytes:
    """The bytes that belong to `key`: both ends can make them, so no digest needs to travel."""
    return random.Random(key).randbytes(size_bytes)


def open_client(config: dict[str, Any], segment_bytes: int) -> StoreClient:
    return StoreClient(
        config["master"],
        host=config["host"],
        protocol=config["protocol"],
        device=config["device"],
        local_buffer_bytes=config["local_buffer_bytes"],
        segment_bytes=segment_bytes,
    )


def produce(config: dict[str, Any]) -> dict[str, Any]:
    """Put every object, say so, and hold them until the consumer is done."""
    with open_client(config, config["segment_bytes"]) as client:
        for key, size in zip(config["keys"], config["sizes_bytes"], strict=True):
            client.put(key, payload(key, size))
        write_result(Path(config["ready_file"]), {})
        wait_for(Path(config["done_file"]), config["timeout_s"])
    return {}


def consume(config: dict[str, Any]) -> dict[str, Any]:
    """Get, compare and remove every object; the time of each get in milliseconds."""
    taken_ms = []
    with open_client(config, 0) as client:
        for key, size in zip(config["keys"], config["sizes_bytes"], strict=True):
            expected = payload(key, size)
            started = time.perf_counter()
            got = client.get(key, size)
            taken_ms.append(round(1000 * (time.perf_counter() - started), 3))
            if bytes(got) != expected:
                raise StoreError(f"an object of {size:,} bytes came back with other bytes", where="store")
            client.remove(key)
            if client.exists(key):
                raise StoreError(f"'{key}' is still there after it was removed", where="store")
    return {"get_ms": taken_ms}


def wait_for(path: Path, timeout_s: float) -> None:
    """Wait for a file of the other end; the deadline only ends a wait whose other end has gone."""
    deadline = time.monotonic() + timeout_s
    while not path.exists():
        if time.monotonic() > deadline:
            raise StoreError(f"the other end did not finish within {timeout_s:g} s", where=path.name)
        time.sleep(0.01)


def write_result(path: Path, result: dict[str, Any]) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(result), encoding="utf-8")
    os.replace(temporary, path)


def main(config_path: str) -> int:
    """Run the end that the configuration names; its result file says how it went."""
    config = json.loads(Path(config_path).read_text(encoding="utf-8"))
    result: dict[str, Any] = {"cause": ""}
    try:
        result |= {"produce": produce, "consume": consume}[config["role"]](config)
    except StoreError as failure:
        result["cause"] = failure.what
    except ImportError as error:
        result["cause"] = f"the store cannot be loaded: {error}"
    write_result(Path(config["result_file"]), result)
    return 1 if result["cause"] else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
