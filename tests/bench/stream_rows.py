"""The rows of `make bench STAGES=stream`: which module measures which.

A module has `def rows(folder: Path) -> list[Row]`; `folder` is empty and its own. A new row is one line here.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from rows import Row

MODULES = {
    "target_work": "target_work",
    "wall_time": "target_work",
    "capture_rate": "capture_rate",
    "client_memory": "client_memory",
    "consume": "consume",
    "produce": "produce",
    "log": "log_rows",
}
"""Name for `ROWS` -> module. A module that measures several rows at once gives all of them."""


def measure_stream(names: Sequence[str], folder: Path) -> list[Row]:
    """Rows of the modules that measure `names` (all, if there are none), in the order above."""
    wanted = [module for name, module in MODULES.items() if not names or name in names]
    found: list[Row] = []
    for module in dict.fromkeys(wanted):
        own = folder / module
        own.mkdir()
        found += import_module(module).rows(own)
    return found
