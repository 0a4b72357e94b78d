"""A log that comes in sample by sample, as a capture client writes it: from one that is complete."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tasks.stream.log import HiddenStateLog, LogWriter

TRAIN = 20
"""Training samples of the tiny world's log: numbers 0 to 19."""
HELD_OUT = 4
"""Its held-out samples: numbers 20 to 23."""
SAMPLE_BYTES = 24 * 1024
"""Rather more than the largest of its samples takes on disk."""
MIXED = (20, 3, 7, 0, 21, 12, 1, 2, 15, 4, 22, 5, 6, 8, 9, 23, 10, 11, 13, 14, 16, 17, 18, 19)
"""An order of capture."""
TRAIN_ORDER = tuple(number for number in MIXED if number < TRAIN)


def capture_again(
    source: Path,
    folder: Path,
    order: Sequence[int] = MIXED,
    *,
    window_bytes: int | None = None,
    pause_s: float = 0.0,
    finish: bool = True,
    opened: Path | None = None,
    before: Callable[[int], object] = lambda number: None,
) -> int:
    """Write what is missing of `order` into the log at `folder`; returns the most bytes that it ever took.

    Args:
        opened: A file that tells others that the log is in order.
        before: Called before each sample is written.
    """
    log = HiddenStateLog(source)
    entries = {entry.i: entry for entry in log.entries()}
    writer = LogWriter(folder, window_bytes=window_bytes, sync=False)
    if opened is not None:
        opened.touch()
    for number in order:
        if number in writer.entries:
            continue
        entry = entries[number]
        states, ids = log.load(entry)
        time.sleep(pause_s)
        before(number)
        writer.append(
            i=entry.i,
            prompt_id=entry.prompt_id,
            domain=entry.domain,
            split=entry.split,
            prompt_tokens=entry.prompt_tokens,
            answer_ids=entry.answer_ids,
            finish_reason=entry.finish_reason,
            hidden_states=states,
            token_ids=ids,
        )
    if finish:
        writer.finish()
    writer.close()
    return writer.peak_bytes


@contextmanager
def arriving(source: Path, folder: Path, **options: object) -> Iterator[list[int]]:
    """Capture beside the block; the list gets the peak of bytes when it ended."""
    peaks: list[int] = []
    thread = threading.Thread(
        target=lambda: peaks.append(capture_again(source, folder, **options))  # type: ignore[arg-type]
    )
    thread.start()
    try:
        yield peaks
    finally:
        thread.join()
