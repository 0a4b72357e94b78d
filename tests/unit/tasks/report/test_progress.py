"""What a user sees while a run works."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tasks.report import progress as module
from tasks.report.progress import LineProgress, TerminalProgress, Work, clock, figure


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of the displays; set `now[0]`."""
    time = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: time[0])
    return time


def test_clock() -> None:
    assert [clock(s) for s in (0, 75.9, 3600, 3725)] == ["0:00", "1:15", "1:00:00", "1:02:05"]


def test_one_line_every_few_percent(now: list[float]) -> None:
    lines: list[str] = []
    display = LineProgress(lines.append, every_percent=25)
    display.stage_started("stream", "has not run")
    for done in range(101):
        now[0] += 1
        display.update(done=done, total=100, unit="samples", metrics={"tokens/s": 154.321})
    display.stage_ended("stream", "completed", 100)
    assert lines[0] == "stream: starts (has not run)"
    assert lines[-1] == "stream: completed in 1:40"
    assert len(lines) == 2 + 5
    assert lines[2] == "stream: 25/100 samples, tokens/s 154.3, 1:15 left"


def test_work_of_unknown_size_shows_a_line_now_and_then(now: list[float]) -> None:
    lines: list[str] = []
    display = LineProgress(lines.append, every_s=15)
    display.stage_started("serve", "has not run")
    for _ in range(60):
        now[0] += 1
        display.update(done=now[0], total=None, unit="s", note="loading weights")
    assert len(lines) == 1 + 4
    assert "loading weights" in lines[-1]


def test_each_piece_of_work_starts_its_own_count(now: list[float]) -> None:
    lines: list[str] = []
    display = LineProgress(lines.append, every_percent=50)
    display.stage_started("evaluate", "has not run")
    for unit in ("prompts", "rounds"):
        for done in (0, 50, 100):
            display.update(done=done, total=100, unit=unit)
    assert [line.split(",")[0] for line in lines[1:]] == [
        f"evaluate: {done}/100 {unit}" for unit in ("prompts", "rounds") for done in (0, 50, 100)
    ]


def test_time_left_comes_from_this_piece_of_work_only() -> None:
    work = Work()
    work.take(40, 100, "steps", {}, "", now=10.0)
    assert work.seconds_left(10.0) is None
    work.take(50, 100, "steps", {}, "", now=20.0)
    assert work.seconds_left(20.0) == pytest.approx(50.0)


def terminal(width: int = 100) -> tuple[TerminalProgress, io.StringIO]:
    stream = io.StringIO()
    environment = {"TERM": "xterm-256color"}  # whatever terminal the tests run in
    console = Console(
        file=stream, force_terminal=True, width=width, height=24, legacy_windows=False, _environ=environment
    )
    return TerminalProgress(console), stream


def shown(display: TerminalProgress, width: int = 100) -> list[str]:
    """What the display would draw now, as plain text."""
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(display._draw())
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_the_display_lists_all_stages_with_the_current_work(now: list[float]) -> None:
    display, _ = terminal()
    display.stage_reused("validate")
    display.stage_started("serve", "has not run")
    display.stage_ended("serve", "completed", 71)
    display.stage_started("stream", "changed: profile.stream.max_new_tokens: 72 -> 48")
    assert "changed: profile.stream.max_new_tokens" in shown(display)[2]
    display.update(done=120, total=480, unit="samples", metrics={"tokens_per_s": 154})
    now[0] += 30
    display.update(done=240, total=480, unit="samples", metrics={"tokens_per_s": 154})
    lines = shown(display)
    assert len(lines) == 6
    assert lines[0].startswith("↺ validate") and lines[0].endswith("reused")
    assert lines[1].startswith("✓ serve") and "1:11" in lines[1]
    assert lines[2].startswith("▶ stream") and "240/480 samples, 154 tokens/s, 1:00 left" in lines[2]
    assert lines[3] == "· train"


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_narrow_terminal_keeps_one_line_for_each_stage(width: int) -> None:
    display, _ = terminal(width)
    display.stage_started("train", "has not run")
    metrics = {"loss": 0.731234, "eal": 1.52, "tokens/s": 1234.5}
    display.update(done=120, total=480, unit="steps", metrics=metrics, note="epoch 3 of 10")
    lines = shown(display, width)
    assert len(lines) == 6
    assert all(len(line) <= width for line in lines)
    assert "120" in lines[3]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_the_cursor_comes_back_whatever_ends_the_display(error: type[BaseException]) -> None:
    display, stream = terminal()

    def work() -> None:
        with display:
            display.stage_started("train", "has not run")
            raise error

    with pytest.raises(error):
        work()
    text = stream.getvalue()
    assert "\x1b[?25l" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("tokens_per_s", 310.8, "311 tokens/s"),
        ("bytes", 241_100_000.0, "241 MB"),
        ("tokens", 17_430.0, "17,430 tokens"),
        ("loss", 0.73123, "loss 0.7312"),
    ],
)
def test_figures_read_as_a_person_writes_them(name: str, value: float, shown: str) -> None:
    """No powers of ten and no raw names of rates in the terminal."""
    assert figure(name, value) == shown
