"""`make bench`: what this project's own loops cost beside the plain way of doing the same, on this machine.

    make bench                            every stage
    make bench STAGES=train JSON=file     one stage; the rows go to a file too

Both sides of a row run in turns in one process, on the same weights and inputs, and their results are
compared before anything is timed. The ratio is the statement; the absolute figures belong to the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from rows import Row, Size


def measure(stages: Sequence[str], size: Size, folder: Path) -> list[Row]:
    """Rows of the stages asked for."""
    from comparisons import COMPARISONS, make_world

    world = make_world(size, folder)
    return [COMPARISONS[stage](world) for stage in stages]


def table(rows: Sequence[Row]) -> str:
    lines = [f"{'stage':<10}{'name':<34}{'value':>10}{'baseline':>10}{'ratio':>8}{'goal':>6}  unit"]
    lines += [
        f"{r.stage:<10}{r.name:<34}{r.value:>10}{r.baseline:>10}{r.ratio:>8}{r.goal or '':>6}  {r.unit}"
        for r in rows
    ]
    return "\n".join([*lines, *(f"{r.stage}: {r.conditions}" for r in rows)])


def main(arguments: Sequence[str] | None = None, size: Size | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="make bench")
    parser.add_argument("--stages", nargs="*", choices=["train", "evaluate"], default=["train", "evaluate"])
    parser.add_argument("--json", type=Path)
    wanted: Any = parser.parse_args(arguments)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(wanted.stages, size or Size(), Path(folder))
    print(table(rows))
    if wanted.json:
        wanted.json.write_text(json.dumps([asdict(r) for r in rows], indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
