"""Run a command that ends when its parent ends: `python -I -S tie.py PARENT_PID COMMAND...`.

Sets the kernel's parent-death signal and becomes the command, so the command needs to know nothing.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_COMMAND_NOT_FOUND = 127


def die_with_parent(parent: int) -> None:
    """Get SIGTERM when the thread that started this process ends; exit now if `parent` is already gone."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it died before the signal was set
        raise SystemExit(128 + signal.SIGTERM)


def main() -> None:
    die_with_parent(int(sys.argv[1]))
    try:
        os.execvp(sys.argv[2], sys.argv[2:])
    except OSError as error:
        print(f"{sys.argv[2]}: {error.strerror}", file=sys.stderr)
        raise SystemExit(_COMMAND_NOT_FOUND) from None


if __name__ == "__main__":
    main()
