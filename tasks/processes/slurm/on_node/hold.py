"""Keeps an allocation as long as the flow lives: `python -I -S hold.py HEARTBEAT_FILE SILENCE_S`.

It is the batch script's only work, so the job ends, with every process in it, when this ends. What counts is
that the file changes, not its time: clocks of nodes differ. Standard library only.
"""

from __future__ import annotations

import sys
import time

_LOOK_S = 1.0


def content_of(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError:
        return b""


def hold(path: str, silence_s: float) -> None:
    """Return when the file has not changed for `silence_s`."""
    known, since = content_of(path), time.monotonic()
    while time.monotonic() - since < silence_s:
        time.sleep(_LOOK_S)
        now = content_of(path)
        if now and now != known:
            known, since = now, time.monotonic()


def main() -> None:
    hold(sys.argv[1], float(sys.argv[2]))
    print(f"the flow has not been heard of for {sys.argv[2]} s: this job ends", flush=True)


if __name__ == "__main__":
    main()
