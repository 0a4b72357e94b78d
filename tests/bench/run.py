"""`make bench`: what this project's own loops cost beside the plain way of doing the same, on this machine.

    make bench                                        every stage; `stream` starts servers: half an hour
    make bench STAGES=train JSON=file                 one stage; the rows go to a file too
    make bench STAGES=train ROWS="step data_wait"     some rows of the train stage
    make bench STAGES=stream ROWS="log consume"       some rows of the stream stage, each in minutes
    make bench STAGES=evaluate ROWS=replay            replay against the live arm, on real servers

Both sides of a row are measured in turns in one run, on the same weights and inputs; where both compute a
result, it is compared before anything is timed. The ratio is the statement, the absolute figures belong to
the machine. Whether a goal is a lower or an upper bound stands in the row's conditions.
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
from stream_rows import GROUPS, MODULES, measure_stream
from train_rows import FORWARD, NAMES, measure_train

from tasks.errors import RetrainError

STAGES = ("train", "evaluate", "stream")
STREAMED = (*MODULES, *GROUPS)
"""Names of the rows of the stage stream, and of groups of them."""
BLOCKS, REPLAY = "blocks", "replay"
EVALUATED = (BLOCKS, REPLAY)
"""Names of the rows of the stage evaluate."""


def measure(stages: Sequence[str], size: Size, folder: Path, names: Sequence[str] = ()) -> list[Row]:
    """Rows of the stages asked for; `names` chooses among them."""
    found: list[Row] = []
    computed = [stage for stage in ("train", "evaluate") if stage in stages]
    if names and FORWARD not in names and "train" in computed:
        computed.remove("train")
    if set(names) & set(EVALUATED) and BLOCKS not in names and "evaluate" in computed:
        computed.remove("evaluate")
    if computed:
        from comparisons import COMPARISONS, make_world

        world = make_world(size, folder)
        found += [COMPARISONS[stage](world) for stage in computed]
    if "train" in stages and (not names or set(names) & set(NAMES) - {FORWARD}):
        found += measure_train(names, folder / "train")
    if "evaluate" in stages and (not names or REPLAY in names):
        import replay_row

        own = folder / REPLAY
        own.mkdir()
        found += replay_row.rows(own)
    if "stream" in stages and (not names or set(names) & set(STREAMED)):
        streamed = folder / "stream"
        streamed.mkdir()
        found += measure_stream(names, streamed)
    return found


def table(rows: Sequence[Row]) -> str:
    lines = [f"{'stage':<10}{'name':<34}{'value':>11}{'baseline':>11}{'ratio':>8}{'goal':>6}  unit"]
    lines += [
        f"{r.stage:<10}{r.name:<34}{r.value:>11}{r.baseline:>11}{r.ratio:>8}{r.goal or '':>6}  {r.unit}"
        for r in rows
    ]
    return "\n".join([*lines, *(f"{r.stage}, {r.name}: {r.conditions}" for r in rows)])


def main(arguments: Sequence[str] | None = None, size: Size | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="make bench")
    parser.add_argument("--stages", nargs="*", choices=STAGES, default=list(STAGES))
    parser.add_argument("--rows", nargs="*", choices=[*NAMES, *EVALUATED, *STREAMED], default=[])
    parser.add_argument("--json", type=Path)
    wanted: Any = parser.parse_args(arguments)
    for stage, rows in (("train", NAMES), ("evaluate", EVALUATED), ("stream", STREAMED)):
        if set(wanted.rows) & set(rows) and stage not in wanted.stages:
            parser.error(f"--rows names rows of the stage {stage}")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with tempfile.TemporaryDirectory() as folder:
        try:
            rows = measure(wanted.stages, size or Size(), Path(folder), wanted.rows)
        except RetrainError as error:
            sys.exit(f"make bench: {error}")
    print(table(rows))
    if wanted.json:
        wanted.json.write_text(json.dumps([asdict(r) for r in rows], indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
