"""What a user sees while a run works: a live display in a terminal, one line every few percent elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

_WIDE = 100
STAGE_WORDS = ("validate", "serve", "stream", "train", "evaluate", "publish")
_MARKS = {"waiting": "·", "running": "▶", "completed": "✓", "reused": "↺", "failed": "✗", "skipped": "-"}
_STYLES = {
    "running": "bold cyan",
    "completed": "green",
    "reused": "green",
    "failed": "bold red",
    "waiting": "dim",
}


class Progress(Protocol):
    """What a stage reports to."""

    def update(
        self,
        *,
        done: float,
        total: float | None,
        unit: str,
        metrics: Mapping[str, float] = {},
        note: str = "",
    ) -> None:
        """Report how far the current piece of work is.

        Args:
            done: Finished amount, in `unit`.
            total: Whole amount, or None if it is not known.
            metrics: Figures worth showing, e.g. tokens/s or loss.
        """


class RunProgress(Progress, Protocol):
    """What the pipeline reports to, besides the stages."""

    def stage_started(self, name: str, reason: str) -> None:
        """A stage begins to work, and why."""

    def stage_reused(self, name: str) -> None:
        """A stage's stored result is valid."""

    def stage_ended(self, name: str, status: str, seconds: float) -> None:
        """A stage completed or failed."""

    def say(self, line: str) -> None:
        """One line that the user must see."""


class SilentProgress:
    """Shows nothing."""

    def update(
        self,
        *,
        done: float,
        total: float | None,
        unit: str,
        metrics: Mapping[str, float] = {},
        note: str = "",
    ) -> None:
        return

    def stage_started(self, name: str, reason: str) -> None:
        return

    def stage_reused(self, name: str) -> None:
        return

    def stage_ended(self, name: str, status: str, seconds: float) -> None:
        return

    def say(self, line: str) -> None:
        return


_shown: ContextVar[RunProgress | None] = ContextVar("retrain_dspark_progress", default=None)


def show_on(progress: RunProgress) -> None:
    """Make `progress` the display of runs that start in this context."""
    _shown.set(progress)


def shown_progress() -> RunProgress | None:
    """The display chosen by `show_on`, if any."""
    return _shown.get()


@dataclass
class Work:
    """The current piece of work and its speed."""

    unit: str = ""
    done: float = 0.0
    total: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    note: str = ""
    first_done: float = 0.0
    started: float = 0.0

    def take(
        self, done: float, total: float | None, unit: str, metrics: Mapping[str, float], note: str, now: float
    ) -> None:
        if unit != self.unit or done < self.done or not self.started:
            self.first_done, self.started, self.metrics = done, now, {}
        self.unit, self.done, self.total = unit, done, total
        self.metrics.update(metrics)
        self.note = note or self.note

    def seconds_left(self, now: float) -> float | None:
        """Time left at the speed so far; None until something was done."""
        elapsed, gained = now - self.started, self.done - self.first_done
        if not self.total or gained <= 0 or elapsed < 1:
            return None
        return max(self.total - self.done, 0) * elapsed / gained

    def describe(self, now: float) -> str:
        """`120/432 samples, 154 tokens/s, loss 0.73, 1:20 left`."""
        amount = f"{self.done:g}/{self.total:g}" if self.total else f"{self.done:g}"
        parts = [f"{amount} {self.unit}".strip()]
        parts += [figure(name, value) for name, value in list(self.metrics.items())[:4]]
        left = self.seconds_left(now)
        if left is not None:
            parts.append(f"{clock(left)} left")
        if self.note:
            parts.append(self.note)
        return ", ".join(parts)


def figure(name: str, value: float) -> str:
    """A figure as a person reads it: `tokens_per_s` 310.8 -> `311 tokens/s`, `bytes` 2.4e8 -> `241 MB`."""
    if name == "bytes":
        return f"{value / 1e6:,.0f} MB"
    if name.endswith("_per_s"):
        return f"{value:,.0f} {name.removesuffix('_per_s')}/s"
    return f"{value:,.0f} {name}" if value == int(value) else f"{name} {value:.4g}"


def clock(seconds: float) -> str:
    """`75.2` -> `1:15`."""
    whole = int(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


class LineProgress:
    """One line for each stage and each few percent of its work.

    Args:
        emit: Takes a line without its end.
        every_percent: Smallest step between two lines of one piece of work.
        every_s: Smallest time between two lines where the total is not known, seconds.
    """

    def __init__(
        self, emit: Callable[[str], None], every_percent: float = 5.0, every_s: float = 15.0
    ) -> None:
        self._emit = emit
        self._every_percent = every_percent
        self._every_s = every_s
        self._stage = ""
        self._work = Work()
        self._next_percent = 0.0
        self._last_line = 0.0
        self._lock = threading.Lock()

    def update(
        self,
        *,
        done: float,
        total: float | None,
        unit: str,
        metrics: Mapping[str, float] = {},
        note: str = "",
    ) -> None:
        with self._lock:
            now = time.monotonic()
            if unit != self._work.unit or done < self._work.done:
                self._next_percent = 0.0
            self._work.take(done, total, unit, metrics, note, now)
            if total:
                percent = 100 * done / total
                if percent < self._next_percent:
                    return
                self._next_percent = percent - percent % self._every_percent + self._every_percent
            elif now - self._last_line < self._every_s:
                return
            self._last_line = now
            self._emit(f"{self._stage}: {self._work.describe(now)}")

    def stage_started(self, name: str, reason: str) -> None:
        self._stage, self._work, self._next_percent = name, Work(), 0.0
        self._emit(f"{name}: starts ({reason})")

    def stage_reused(self, name: str) -> None:
        self._emit(f"{name}: reused")

    def stage_ended(self, name: str, status: str, seconds: float) -> None:
        self._emit(f"{name}: {status} in {clock(seconds)}")

    def say(self, line: str) -> None:
        self._emit(line)


class TerminalProgress:
    """A live list of stages with the current work; restores the terminal whatever ends it.

    Args:
        console: Terminal to draw on.
    """

    def __init__(self, console: Console) -> None:
        self._states = dict.fromkeys(STAGE_WORDS, "waiting")
        self._seconds: dict[str, float] = {}
        self._notes: dict[str, str] = {}
        self._current = ""
        self._began = 0.0
        self._work = Work()
        self._lock = threading.RLock()
        self._live = Live(
            get_renderable=self._draw,
            console=console,
            refresh_per_second=4,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def update(
        self,
        *,
        done: float,
        total: float | None,
        unit: str,
        metrics: Mapping[str, float] = {},
        note: str = "",
    ) -> None:
        with self._lock:
            self._work.take(done, total, unit, metrics, note, time.monotonic())

    def stage_started(self, name: str, reason: str) -> None:
        with self._lock:
            self._states[name], self._current = "running", name
            self._began, self._work = time.monotonic(), Work()
            self._notes[name] = "" if reason == "has not run" else reason

    def stage_reused(self, name: str) -> None:
        with self._lock:
            self._states[name] = "reused"

    def stage_ended(self, name: str, status: str, seconds: float) -> None:
        with self._lock:
            self._states[name], self._seconds[name] = status, seconds
            self._current = ""

    def say(self, line: str) -> None:
        self._live.console.print(Text(line))

    def _draw(self) -> RenderableType:
        now = time.monotonic()
        table = Table.grid(padding=(0, 1))
        for _ in range(4):
            table.add_column(no_wrap=True, overflow="ellipsis")
        with self._lock:
            for name, state in self._states.items():
                seconds = now - self._began if name == self._current else self._seconds.get(name)
                style = _STYLES.get(state, "")
                table.add_row(
                    Text(_MARKS.get(state, "?"), style=style),
                    Text(name, style=style),
                    Text(clock(seconds) if seconds is not None else "", style="dim"),
                    self._detail(name, state, now),
                )
        return Group(table)

    def _detail(self, name: str, state: str, now: float) -> RenderableType:
        if name != self._current:
            return Text("reused" if state == "reused" else "", style="dim")
        words = Text(self._work.describe(now) if self._work.unit else self._notes.get(name, ""))
        words.no_wrap, words.overflow = True, "ellipsis"  # a line that wraps makes the whole list jump
        if not self._work.total:
            return words
        line = Table.grid(padding=(0, 1))
        width = 24 if self._live.console.width >= _WIDE else 8
        line.add_column(min_width=width, max_width=width)
        line.add_column(no_wrap=True, overflow="ellipsis")
        line.add_row(ProgressBar(total=self._work.total, completed=self._work.done, width=width), words)
        return line
