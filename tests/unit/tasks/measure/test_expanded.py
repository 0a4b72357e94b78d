"""Percentiles of few units are expanded."""

import pytest

from tasks.measure.quantiles import expanded


def test_few_units_ask_for_wider_percentiles() -> None:
    assert expanded(0.90, 10_000) == pytest.approx(0.90, abs=1e-3)
    assert 0.90 < expanded(0.90, 100) < expanded(0.90, 12) < expanded(0.90, 4) < 1
    assert expanded(0.90, 12) == pytest.approx(0.939, abs=2e-3)  # 1.796 sqrt(12 / 11) standard errors
    assert expanded(0.90, 1) == expanded(0.90, 0) == 1.0
