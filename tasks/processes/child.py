"""The inside of a finite child process: its main, its errors, its progress."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from tasks.errors import EXIT_FAILED, RetrainError
from tasks.processes.tie import die_with_parent

ERROR_FILE_ENV = "RETRAIN_DSPARK_ERROR_FILE"
_EXIT_TERMINATED = 128 + signal.SIGTERM


def child_main(work: Callable[[dict[str, Any]], None]) -> NoReturn:
    """Run `work` with the configuration in the JSON file that `argv[1]` names, and exit.

    A RetrainError is handed to the parent through `$RETRAIN_DSPARK_ERROR_FILE` and gives its own exit
    code. Any other exception is written to the log with its traceback. SIGTERM raises SystemExit inside
    `work`, so that `finally` blocks run. The process ends when its parent does.
    """
    die_with_parent(os.getppid())
    signal.signal(signal.SIGTERM, _terminate)
    try:
        work(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    except RetrainError as error:
        print(error, file=sys.stderr, flush=True)
        _report(type(error).__name__, error.what, error.where, error.hint)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except Exception as error:  # the parent must hear of every failure
        traceback.print_exc()
        _report("JobError", f"{type(error).__name__}: {error}", "", "")
        sys.exit(EXIT_FAILED)
    sys.exit(0)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(_EXIT_TERMINATED)


def _report(kind: str, what: str, where: str, hint: str) -> None:
    path = os.environ.get(ERROR_FILE_ENV)
    # Of several ranks the first that failed says why; the others only miss it.
    if path and not Path(path).exists():
        row = {"kind": kind, "what": what, "where": where, "hint": hint}
        Path(path).write_text(json.dumps(row), encoding="utf-8")


class ProgressFile:
    """Appends one JSON line for each step of progress; the parent reads it with `run_job`."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._path.parent.mkdir(parents=True, exist_ok=True)

    def write(
        self,
        done: float,
        total: float | None,
        unit: str,
        metrics: Mapping[str, float] = {},
        note: str = "",
    ) -> None:
        row = {
            "t": time.time(),
            "done": done,
            "total": total,
            "unit": unit,
            "metrics": dict(metrics),
            "note": note,
        }
        with open(self._path, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")
