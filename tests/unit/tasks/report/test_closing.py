"""The last lines: about ten, and always what to do next."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tasks.report.closing import closing_lines
from tasks.report.page import write_report
from tasks.report.summary import read_summary
from tasks.run_folder import RunFolder

MakeRun = Callable[..., RunFolder]
RUN_ID = "20261130-021400-laptop-1f3a9c2e"


def lines_of(run: RunFolder, **options: object) -> list[str]:
    return closing_lines(read_summary(run), run, **options)  # type: ignore[arg-type]


def test_a_promoted_run_says_everything_in_about_ten_lines(make_run: MakeRun) -> None:
    run = make_run()
    write_report(run)
    lines = lines_of(run)
    text = "\n".join(lines)
    assert 10 <= len(lines) <= 14
    assert lines[0] == f"{RUN_ID}: promoted after 11 min 11 s"
    for part in ("tool_call 2.41", "1.71 [1.67, 1.76]", "identical (36 of 36 answers equal)",
                 "promote: lower bound",
                 "v0001", "serve.sh", "report.html", "mlflow ui --backend-store-uri sqlite:///",
                 "retrain-dspark ui, then http://127.0.0.1:4200/runs/flow-run/1f3a9c2e"):  # fmt: skip
        assert part in text, part


@pytest.mark.parametrize(
    ("options", "first", "parts"),
    [
        ({"status": "held"}, "held", ["hold: lower bound of macro tau 1.02 is not above 1.05"]),
        (
            {"status": "failed", "stopped_at": "train"},
            "failed in train",
            ["the trainer ended with code 1", "logs/trainer.log", "lower train.batch_tokens",
             f"retrain-dspark logs {RUN_ID} train", f"retrain-dspark resume {RUN_ID}"],
        ),
        ({"status": "failed", "stopped_at": "validate"}, "failed in validate", ["1.2 GiB are free"]),
        (
            {"status": "cancelled", "stopped_at": "stream"},
            "cancelled in stream",
            [f"retrain-dspark resume {RUN_ID}"],
        ),
    ],
    ids=["held", "failed", "unfit", "cancelled"],
)  # fmt: skip
def test_other_endings(make_run: MakeRun, options: dict[str, str], first: str, parts: list[str]) -> None:
    lines = lines_of(make_run(**options))
    assert lines[0].startswith(f"{RUN_ID}: {first} after")
    for part in parts:
        assert part in "\n".join(lines), part
    assert len(lines) <= 14


def test_colour_only_when_asked(make_run: MakeRun) -> None:
    run = make_run()
    assert "\x1b[1;32mpromoted\x1b[0m" in lines_of(run, colour=True)[0]
    assert not any("\x1b" in line or "\xa0" in line for line in lines_of(run))


def test_a_prefect_server_of_the_user_is_named(make_run: MakeRun) -> None:
    text = "\n".join(lines_of(make_run(), prefect_page="http://prefect.example:4200/"))
    assert "Prefect   http://prefect.example:4200/runs/flow-run/1f3a9c2e" in text


def test_domains_and_their_figures_stay_on_one_line(make_run: MakeRun) -> None:
    lines = lines_of(make_run())
    assert any("tool_call 2.41" in line for line in lines)
    assert all(len(line) <= 112 for line in lines if line.startswith(("tau", "decision", "   ")))
