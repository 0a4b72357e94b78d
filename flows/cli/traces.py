"""Keeps the traceback of an unexpected error in a file."""

from __future__ import annotations

import traceback
from datetime import datetime
from pathlib import Path

from tasks.redaction import redact
from tasks.run_folder import run_root


def keep_traceback(error: BaseException) -> Path:
    """Append the traceback to `errors.log` in the run root and return its path."""
    path = run_root() / "errors.log"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(path, "a", encoding="utf-8") as stream:
        stream.write(f"--- {datetime.now():%Y-%m-%d %H:%M:%S}\n")
        stream.write(redact("".join(traceback.format_exception(error))))
    return path
