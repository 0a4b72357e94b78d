"""What `retrain-dspark doctor` prints: aligned, worst first, remedies below what does not pass."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

import click

from tasks.validate.models import Status, ValidationReport
from tasks.validate.summary import Line, count_text, summary_lines

COLOURS: dict[Status, str] = {"fail": "red", "warn": "yellow", "pass": "green", "skip": "bright_black"}
WIDEST, NARROWEST = 120, 60
STATUS_WIDTH = 6
SHORTEST_TEXT = 30


@dataclass(frozen=True)
class Screen:
    """Where the text goes.

    Args:
        width: Characters in a line.
        colour: Whether ANSI colours are shown there.
    """

    width: int
    colour: bool


def screen(environment: Mapping[str, str] = os.environ) -> Screen:
    """Standard output: coloured on a terminal, unless NO_COLOR has a value or the terminal is dumb."""
    terminal = sys.stdout.isatty()
    plain = bool(environment.get("NO_COLOR")) or environment.get("TERM") == "dumb"
    columns = shutil.get_terminal_size((WIDEST, 24)).columns if terminal else WIDEST
    return Screen(max(NARROWEST, min(columns, WIDEST)), terminal and not plain)


def report_text(report: ValidationReport, about: str, where: Screen) -> str:
    """The whole output.

    Args:
        about: Whose facts against what, for the closing line.
    """
    lines = summary_lines(report.checks)
    wide = max((len(line.name) for line in lines if len(line.ids) == 1), default=0) + 2
    wide = min(wide, where.width - STATUS_WIDTH - SHORTEST_TEXT)
    blocks = [_block(line, wide, where) for line in lines]
    closing = _styled(f"{count_text(report.checks)}: {about}", report.worst, where, bold=True)
    return "\n".join([*(text for block in blocks for text in block), "", closing])


def _block(line: Line, wide: int, where: Screen) -> list[str]:
    """One result: status, check, what was found, then why and what to do."""
    if line.status == "skip":
        reason = f"{line.where}: {line.message}" if line.where else line.message
        if len(line.ids) == 1:
            return _columns(line.status, line.name, reason, wide, where)
        return _columns(line.status, "", f"{line.name}: {reason}", 0, where)
    bad = line.status in ("fail", "warn")
    place = f"{line.where}: " if line.where else ""
    if bad:
        found = f"{place}{line.observed} (required: {line.required})"
    else:
        found = f"{place}{line.observed}{'; ' if line.message else ''}{line.message}"
    rows = _columns(line.status, line.name, found, wide, where)
    if bad:
        rows += _below(line.message, wide, where)
        rows += _below(f"to do: {line.remedy}" if line.remedy else "", wide, where, bold=True)
    return rows


def _columns(status: Status, name: str, text: str, wide: int, where: Screen) -> list[str]:
    first, *rest = _wrapped(text, wide, where)
    head = _styled(f"{status:<{STATUS_WIDTH}}", status, where, bold=status == "fail")
    gap = " " * (STATUS_WIDTH + wide)
    return [f"{head}{name:<{wide}}{first}", *(gap + row for row in rest)]


def _below(text: str, wide: int, where: Screen, bold: bool = False) -> list[str]:
    gap = " " * (STATUS_WIDTH + wide)
    rows = _wrapped(text, wide, where) if text else []
    return [gap + (click.style(row, bold=True) if bold and where.colour else row) for row in rows]


def _wrapped(text: str, wide: int, where: Screen) -> list[str]:
    room = where.width - STATUS_WIDTH - wide
    return textwrap.wrap(text, room, break_on_hyphens=False, break_long_words=False) or [""]


def _styled(text: str, status: Status, where: Screen, bold: bool = False) -> str:
    return click.style(text, fg=COLOURS[status], bold=bold) if where.colour else text
