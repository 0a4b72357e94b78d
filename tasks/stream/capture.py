"""The capture client, a program: `python -m tasks.stream.capture capture.json`.

Runs on the trainer's node. Asks the target for each prompt that the log does not hold yet, takes the
hidden states from the store, verifies them and appends them to the log.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.processes.child import ProgressFile, child_main
from tasks.prompts.render import Rendered, load_tokenizer, refuse_too_many, render
from tasks.stream.asking import Asker
from tasks.stream.budget import ByteBudget
from tasks.stream.canary import open_canary
from tasks.stream.collector import Collector
from tasks.stream.log import LogWriter
from tasks.stream.sample import Request, Shape
from tasks.stream.settings import API_KEY_ENV, CaptureFiles, CaptureSettings, PromptRow
from tasks.stream.store import StoreClient
from tasks.stream.tally import Tally
from tasks.stream.token_counts import write_token_counts

_PROGRESS_S = 1.0
_CLEAN_FOR_S = 5.0
_CLEAN_POLL_S = 0.25
_SEED_STEP = 1_000_003


def request_prefix(run_id: str) -> str:
    """Begin of the request ids of a run, in the letters that a store key may have."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", run_id)


def key_pattern(run_id: str) -> str:
    """Regular expression of every key of a run in the store, the readiness request included."""
    return f"^(chat)?cmpl-{request_prefix(run_id)}-(ready|[0-9]+-[0-9a-f]+)-.*"


def run(config: dict[str, Any]) -> None:
    """Capture what is missing; `config` is a `CaptureSettings`."""
    settings = CaptureSettings.model_validate(config)
    files = CaptureFiles(Path(settings.folder))
    log = LogWriter(files.log)
    for line in log.repaired:
        print(f"repaired: {line}", flush=True)
    requests = _requests(settings, files)
    finished = log.entries.keys() | _numbers(files.set_aside)
    missing = [request for request in requests if request.n not in finished]
    tally = Tally(files.counters)
    show = _Progress(settings, log, tally, total=len(requests), finished=len(requests) - len(missing))
    show.write(note=f"{len(missing)} of {len(requests)} prompts to ask")
    lost = _capture(settings, files, log, tally, show, missing) if missing else []
    log.close()
    tally.save()
    _write_rows(files.lost, lost)
    write_token_counts(files.log, files.token_counts)
    show.write()


def _requests(settings: CaptureSettings, files: CaptureFiles) -> list[Request]:
    """All prompts in tokens; writes down which had to be dropped."""
    rows = [PromptRow.model_validate_json(line) for line in files.prompts.read_text("utf-8").splitlines()]
    tokenizer = load_tokenizer(Path(settings.tokenizer), trust_remote_code=settings.trust_remote_code)
    rendered, dropped = render(
        [row.prompt() for row in rows],
        tokenizer,
        thinking=settings.thinking,
        max_new_tokens={split: one.max_new_tokens for split, one in settings.sampling.items()},
        max_model_len=settings.max_model_len,
    )
    _write_rows(files.dropped, [{"prompt_id": row.prompt_id, "reason": row.reason} for row in dropped])
    refuse_too_many(dropped, len(rows), settings.max_bad_rows)
    numbers = {row.id: number for number, row in enumerate(rows)}
    return [_request(settings, one, numbers[one.prompt.id]) for one in rendered]


def _request(settings: CaptureSettings, one: Rendered, number: int) -> Request:
    sampling = settings.sampling[one.prompt.split]
    return Request(
        n=number,
        prompt_id=one.prompt.id,
        domain=one.prompt.domain,
        split=one.prompt.split,
        prompt_ids=one.prompt_ids,
        max_new_tokens=one.max_new_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        seed=(sampling.seed * _SEED_STEP + number) % 2**31,
    )


class _Progress:
    """Writes progress when something was captured, so that a stall is seen as silence."""

    def __init__(self, settings: CaptureSettings, log: LogWriter, tally: Tally, *, total: int, finished: int):
        self._file = ProgressFile(settings.progress_file)
        self._log = log
        self._tally = tally
        self._total = total
        self._done = finished
        self._last = (time.monotonic(), self._tokens())
        self._rate = 0.0

    def _tokens(self) -> int:
        return self._tally.target_prompt_tokens + self._tally.target_generated_tokens

    def sample(self) -> None:
        """One more prompt is finished."""
        self._done += 1
        now, tokens = time.monotonic(), self._tokens()
        if now - self._last[0] >= _PROGRESS_S:
            self._rate = (tokens - self._last[1]) / (now - self._last[0])
            self._last = (now, tokens)
            self._tally.save()
            self.write()

    def write(self, note: str = "") -> None:
        entries = list(self._log.entries.values())
        metrics = {
            "tokens": float(sum(entry.tokens for entry in entries)),
            "tokens_per_s": round(self._rate, 2),
            "bytes": float(sum(entry.bytes for entry in entries)),
            "rejected": float(sum(self._tally.rejected.values())),
            "lost": float(self._tally.lost),
        }
        self._file.write(self._done, self._total, "samples", metrics, note)


def _capture(
    settings: CaptureSettings,
    files: CaptureFiles,
    log: LogWriter,
    tally: Tally,
    show: _Progress,
    missing: Sequence[Request],
) -> list[dict[str, Any]]:
    """Ask for `missing`; return the lost ones. Leaves nothing of this run in the store."""
    store = StoreClient(
        settings.store_master,
        host=settings.store_host,
        protocol=settings.store_protocol,
        device=settings.store_device,
        local_buffer_bytes=settings.store_local_buffer_bytes,
    )
    pattern = key_pattern(settings.run_id)
    try:
        store.remove_matching(pattern)
        return asyncio.run(_collect(settings, files, log, tally, show, missing, store))
    finally:
        tally.save()
        _clean(store, pattern)
        store.close()


async def _collect(
    settings: CaptureSettings,
    files: CaptureFiles,
    log: LogWriter,
    tally: Tally,
    show: _Progress,
    missing: Sequence[Request],
    store: StoreClient,
) -> list[dict[str, Any]]:
    asker = Asker(
        settings.url,
        settings.served_name,
        os.environ.get(API_KEY_ENV),
        prefix=request_prefix(settings.run_id),
        session=secrets.token_hex(4),
        concurrency=settings.concurrency,
        timeout_s=settings.answer_timeout_s,
    )
    async with asker:
        canary = open_canary(settings, asker, store, files.canary)

        def finished() -> None:
            show.sample()
            canary.sample_done()

        collector = Collector(
            asker=asker,
            store=store,
            log=log,
            shape=Shape(settings.layers, settings.hidden_size, settings.dtype),
            budget=ByteBudget(settings.in_flight_bytes),
            tally=tally,
            set_aside=files.set_aside,
            max_attempts=settings.max_attempts,
            read_timeout_s=settings.read_timeout_s,
            on_sample=finished,
            check=canary.sample,
        )
        await canary.check()
        await canary.beside(collector.run(missing, settings.concurrency))
        return collector.lost


def _clean(store: StoreClient, pattern: str) -> None:
    """Remove the run's objects; requests that were just given up may still write theirs."""
    deadline = time.monotonic() + _CLEAN_FOR_S
    while store.remove_matching(pattern) and time.monotonic() < deadline:
        time.sleep(_CLEAN_POLL_S)


def _numbers(path: Path) -> set[int]:
    """Numbers of prompts in a JSONL file; a half-written last line does not count."""
    numbers = set()
    if path.exists():
        for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
            numbers.add(int(json.loads(line)["n"]))
    return numbers


def _write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    child_main(run)
