"""A log that cannot fit is refused, with its sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tasks.errors import UsageError
from tasks.plan.log_space import refuse_log_that_cannot_fit
from tasks.plan.sizes import bytes_per_token

K3_TOKEN_BYTES = bytes_per_token(7168, 5, "bfloat16")


def refuse(**changes: Any) -> None:
    values: dict[str, Any] = {
        "samples": 150_000,
        "sample_tokens": 8192,
        "sample_bytes": 8192 * K3_TOKEN_BYTES,
        "kept_samples": 7500,
        "free_bytes": 30 * 10**12,
        "window_bytes": None,
        "where": Path("runs"),
    }
    refuse_log_that_cannot_fit(**{**values, **changes})


def test_kimi_k3_needs_106_terabytes() -> None:
    with pytest.raises(UsageError) as info:
        refuse()
    assert info.value.what == (
        "the hidden-state log cannot fit: 150,000 samples of 8,192 tokens and 704.7 MB are 105.7 TB, "
        "30.0 TB are free"
    )
    assert info.value.where == "runs" and "stream.retention to window" in info.value.hint
    refuse(free_bytes=106 * 10**12)


def test_a_window_must_fit_and_hold_what_stays() -> None:
    refuse(window_bytes=20 * 10**12)
    with pytest.raises(UsageError, match=r"stream.window_bytes is 40.0 TB, 30.0 TB are free"):
        refuse(window_bytes=40 * 10**12)
    with pytest.raises(UsageError, match=r"7,500 held-out .* take 5.3 TB, .* is 5.0 TB") as info:
        refuse(window_bytes=5 * 10**12)
    assert info.value.where == "stream.window_bytes"


def test_the_plan_itself_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import json

    from tasks.plan.core import build_plan
    from tests.unit.tasks.plan.test_core import SMOLLM2, laptop

    monkeypatch.setenv("RETRAIN_DSPARK_RUNS", str(tmp_path / "runs"))
    (tmp_path / "config.json").write_text(json.dumps({**SMOLLM2, "hidden_size": 576 * 10**7}))
    with pytest.raises(UsageError, match="the hidden-state log cannot fit"):
        build_plan(laptop(tmp_path))
