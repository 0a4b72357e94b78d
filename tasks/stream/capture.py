"""The capture client, a program: `python -m tasks.stream.capture capture.json`.

Runs on the trainer's node. Asks the target for each prompt that the log does not hold yet, takes the
hidden states from the store, verifies them and appends them to the log.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from tasks.processes.child import child_main
from tasks.prompts.render import load_tokenizer
from tasks.stage import write_atomic
from tasks.stream.claims import Claim, dead_runs
from tasks.stream.durable import naming_full_disk
from tasks.stream.keys import key_pattern, request_prefix
from tasks.stream.log import LogWriter, index_digest
from tasks.stream.models import CaptureSummary
from tasks.stream.progress import CaptureProgress
from tasks.stream.requests import Prepared, prepare, read_requests
from tasks.stream.session import Session
from tasks.stream.settings import CaptureFiles, CaptureSettings
from tasks.stream.tally import Tally
from tasks.stream.token_counts import ALL, read_token_counts, write_token_counts
from tasks.stream.transport import Transport

__all__ = ["key_pattern", "request_prefix", "run"]

CLIENT_THREADS = 1
"""Threads of one tensor operation. The client's are small, and the other cores belong to who computes: the
target, or the trainer."""
_LOST_SHOWN = 3
_SHOWN_CHARS = 500


def run(config: dict[str, Any]) -> None:
    """Capture what is missing; `config` is a `CaptureSettings`."""
    torch.set_num_threads(CLIENT_THREADS)
    settings = CaptureSettings.model_validate(config)
    files = CaptureFiles(Path(settings.folder))
    folder = Path(settings.claims or files.folder.parent / ".captures")
    claim = Claim(folder, settings.run_id, settings.store_master)
    is_empty = False
    try:
        with naming_full_disk("the capture's files", files.folder):
            is_empty = _capture_missing(settings, files, claim)
    finally:
        claim.release(is_empty=is_empty)


def _capture_missing(settings: CaptureSettings, files: CaptureFiles, claim: Claim) -> bool:
    """Returns whether nothing of this run is, or can come, into the store."""
    log = LogWriter(files.log, window_bytes=settings.window_bytes)
    for line in log.repaired:
        print(f"repaired: {line}", flush=True)
    tokenizer = load_tokenizer(Path(settings.tokenizer), trust_remote_code=settings.trust_remote_code)
    prepared = prepare(settings, files, tokenizer)
    set_aside = _numbers(files.set_aside)
    finished = log.entries.keys() | set_aside
    missing = sum(1 for _ in read_requests(files.requests, finished))
    tally = Tally(files.counters)
    tally.dropped, tally.recorded = dict(prepared.dropped), dict(prepared.recorded)
    tally.set_aside = len(set_aside)
    files.lost.write_text("", encoding="utf-8")
    show = CaptureProgress(settings.progress_file, log.entries.values(), tally, prepared.requests, missing)
    show.write(note=f"{missing} of {prepared.requests} prompts to ask")
    consumed = True
    if missing or claim.inherited == settings.store_master:
        session = _session(settings, files, log, tally, show, prepared)
        consumed = _run_session(session, tally, dead_runs(claim.path.parent, settings.store_master), finished)
    if tally.lost <= settings.max_lost * prepared.prompts:
        log.finish()
    log.close()
    tally.save()
    write_token_counts(files.log, files.token_counts)
    write_atomic(files.summary, _summary(files, log, tally, prepared, consumed).model_dump_json())
    show.write()
    return consumed


def _session(
    settings: CaptureSettings,
    files: CaptureFiles,
    log: LogWriter,
    tally: Tally,
    show: CaptureProgress,
    prepared: Prepared,
) -> Session:
    """Connect to the store as the profile says."""
    transport = Transport(
        settings.store_protocol,
        settings.store_device,
        settings.store_gid_index,
        settings.store_interface,
        settings.store_host,
    )
    transport.require()
    os.environ.update(transport.environment())  # before Mooncake is imported
    return Session(settings, files, log, tally, show, prepared.largest_bytes, transport.address())


def _run_session(session: Session, tally: Tally, dead: Iterator[str], finished: set[int]) -> bool:
    """Sweep dead runs, capture, empty the store; returns whether it is and stays empty."""
    try:
        tally.swept_of_dead_runs = sum(session.sweep_dead(run_id) for run_id in dead)
        session.capture(finished)
    except BaseException:
        session.close(hurried=True)
        with contextlib.suppress(OSError):  # a full disk is what the error says already
            tally.save()
        raise
    try:
        return session.close(hurried=False)
    finally:
        tally.save()


def _summary(
    files: CaptureFiles, log: LogWriter, tally: Tally, prepared: Prepared, consumed: bool
) -> CaptureSummary:
    """What the flow needs to know of the log: it never reads the log itself."""
    entries = log.entries.values()
    with open(files.lost, encoding="utf-8") as lines:
        lost = [json.loads(line) for line, _ in zip(lines, range(_LOST_SHOWN), strict=False)]
    return CaptureSummary(
        digest=index_digest(entries),
        samples=len(entries),
        tokens=sum(entry.tokens for entry in entries),
        trainable_tokens=sum(entry.trainable_tokens for entry in entries if entry.split == "train"),
        distinct_tokens=len(read_token_counts(files.token_counts)[ALL]),
        bytes=sum(entry.bytes for entry in entries),
        splits=dict(Counter(entry.split for entry in entries)),
        prompts=prepared.prompts,
        lost_shown=tuple(f"{row['prompt_id']}: {row['reasons'][-1]}"[:_SHOWN_CHARS] for row in lost),
        consumed=consumed,
        counters=tally.counters(),
    )


def _numbers(path: Path) -> set[int]:
    """Numbers of prompts in a JSONL file; a half-written last line is cut off, or the next would join it."""
    numbers: set[int] = set()
    if not path.exists():
        return numbers
    whole = 0
    with open(path, "r+b") as lines:
        for line in lines:
            if line.endswith(b"\n"):
                numbers.add(int(json.loads(line)["n"]))
                whole += len(line)
        lines.truncate(whole)
    return numbers


if __name__ == "__main__":
    child_main(run)
