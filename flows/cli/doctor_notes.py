"""What `retrain-dspark doctor` does just now: one line of a terminal, gone before the result is printed."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import click

from tasks.report.progress import SilentProgress

_ERASE = "\r\x1b[2K"


class Notes(SilentProgress):
    """Shows the current step on standard error, if that is a terminal that can erase a line."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def update(
        self,
        *,
        done: float,
        total: float | None,
        unit: str,
        metrics: Mapping[str, float] = {},
        note: str = "",
    ) -> None:
        if self._shown:
            click.echo(f"{_ERASE}{note} ...", nl=False, err=True)

    def clear(self) -> None:
        """Remove the line."""
        if self._shown:
            click.echo(_ERASE, nl=False, err=True)
