"""Numbers as people read them."""

from __future__ import annotations

import pytest

from tasks.report import wording


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0, "0.0 s"), (4.25, "4.2 s"), (59.4, "59 s"), (59.97, "1 min 00 s"),
     (670.4, "11 min 10 s"),
     (3599.7, "1 h 00 min"), (3720, "1 h 02 min")],
)  # fmt: skip
def test_duration(seconds: float | None, text: str) -> None:
    assert wording.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (12, "12 B"), (804_749_312, "767.5 MiB"), (5 * 2**40, "5120.0 GiB")]
)
def test_size(value: float | None, text: str) -> None:
    assert wording.size(value) == text


def test_counts_shares_and_intervals() -> None:
    assert wording.count(58214) == "58,214" and wording.count(None) == "-"
    assert wording.millions(9_870_000) == "9.87 M" and wording.millions(950) == "950"
    assert wording.percent(0.0031, 2) == "0.31 %" and wording.percent(None) == "-"
    assert wording.interval(1.667, 1.76) == "[1.67, 1.76]" and wording.interval(None, 2) == ""
    assert wording.tau(1.714) == "1.71" and wording.tau(None) == "-"
