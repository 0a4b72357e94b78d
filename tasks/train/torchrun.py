"""torchrun whose end says what its ranks said: `python -m tasks.train.torchrun <torchrun's arguments>`.

torchrun itself ends its ranks and exits with 1 whatever happened. Here a signal reaches the ranks, which save
and stop; if they say that the run can be resumed, so does this process; a rank that died is named.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from torch.distributed import run as _torchrun
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from tasks.errors import EXIT_FAILED, EXIT_RESUMABLE
from tasks.processes.child import ERROR_FILE_ENV
from tasks.processes.identity import process_table

_TOLD = (signal.SIGTERM, signal.SIGINT)


class _Signals:
    """Hands signals on to the ranks."""

    def __init__(self) -> None:
        self.came = False
        for number in _TOLD:
            signal.signal(number, self._hand_on)

    def _hand_on(self, number: int, _frame: FrameType | None) -> None:
        self.came = True
        for pid, row in process_table().items():
            if row.parent == os.getpid():
                os.kill(pid, signal.SIGTERM)


def _exit_code(failures: Mapping[int, ProcessFailure], asked_to_stop: bool) -> int:
    """What this process exits with; names a rank that died by a signal in the error file."""
    codes = {rank: failure.exitcode for rank, failure in sorted(failures.items())}
    if EXIT_RESUMABLE in codes.values():
        return EXIT_RESUMABLE
    if asked_to_stop:
        return 128 + signal.SIGTERM
    killed = {rank: -code for rank, code in codes.items() if code < 0 and -code not in _TOLD}
    if killed:
        _report_death(*next(iter(killed.items())))
        return EXIT_FAILED
    return next((code for code in codes.values() if code > 0), EXIT_FAILED)


def _report_death(rank: int, number: int) -> None:
    memory = "; the kernel may have ended it for lack of memory" if number == signal.SIGKILL else ""
    row = {
        "kind": "JobError",
        "what": f"rank {rank} of the trainer ended with signal {signal.Signals(number).name}",
        "where": "",
        "hint": f"resume continues from the last complete checkpoint{memory}",
    }
    print(row["what"], file=sys.stderr, flush=True)
    if path := os.environ.get(ERROR_FILE_ENV):
        Path(path).write_text(json.dumps(row), encoding="utf-8")


def main() -> None:
    torchrun: Any = _torchrun  # torch leaves its functions without types
    arguments = torchrun.parse_args(sys.argv[1:])
    if arguments.nnodes == "1":
        # The ranks of one node need no network, and a wrong interface would hang without a word.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    signals = _Signals()
    try:
        torchrun.run(arguments)
    except ChildFailedError as error:
        sys.exit(_exit_code(error.failures, signals.came))


if __name__ == "__main__":
    main()
