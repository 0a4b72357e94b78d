"""The rows of `make bench STAGES=stream`: which module measures which.

A function takes `folder: Path`, empty and its own, and returns `list[Row]`. A new row is one line here.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from rows import Row

MODULES = {
    "target_work": "target_work",
    "wall_time": "target_work",
    "capture_rate_256": "capture_rate:short",
    "capture_rate_8x1024": "capture_rate:long_8",
    "capture_rate_16x1024": "capture_rate:long_16",
    "busy_seconds": "answer_modes",
    "client_memory": "client_memory",
    "consume": "consume",
    "produce": "produce",
    "log": "log_rows:log_rows",
    "large_log": "log_rows:large_log_rows",
}
"""Name for `ROWS` -> module, and function if it is not `rows`. What measures several rows gives all."""
GROUPS = ("capture_rate",)
"""Names for all rows that begin with them."""


def measure_stream(names: Sequence[str], folder: Path) -> list[Row]:
    """Rows of what measures `names` (all, if there are none), in the order above."""
    begins = tuple(f"{name}_" for name in names if name in GROUPS)
    wanted = [what for name, what in MODULES.items() if not names or name in names or name.startswith(begins)]
    found: list[Row] = []
    for what in dict.fromkeys(wanted):
        module, _, function = what.partition(":")
        own = folder / what.replace(":", "-")
        own.mkdir()
        started = time.monotonic()
        rows = getattr(import_module(module), function or "rows")(own)
        shutil.rmtree(own, ignore_errors=True)  # 100,000 files, or gigabytes, that the next row does not need
        print(f"{what}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
        found += rows
    return found
