"""Faults of the target and of the store under the product's own stage: each is counted, repaired, swept."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from streaming_bench import Bench, content_digest, stage_folder

from tasks.errors import RetrainError
from tasks.stream.log import HiddenStateLog

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]
PROMPTS = 12
LATE_S = 2.0


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("bench"), PROMPTS, late_s=LATE_S)
    yield bench
    bench.close()


@pytest.fixture(scope="module")
def expected(bench: Bench) -> str:
    run = bench.run("undisturbed")
    bench.capture(run)
    return content_digest(run)


@pytest.mark.parametrize(
    "fault",
    [
        "damaged",
        "cut",
        "not-finite",
        "constant",
        "zeros",
        "other-tokens",
        "short-rows",
        "writer-error",
        "never-written",
        "late-written",
        "no-handle",
        "no-token-ids",
        "drop",
        "http-429",
        "http-503",
    ],
)
def test_faulty_sample_is_refused_counted_and_captured_again(fault: str, bench: Bench, expected: str) -> None:
    """Nothing of the faulty attempt enters the log: contents are those of a capture without faults."""
    run = bench.run(f"run-{fault}", read_timeout_s=1.0)
    captures = bench.capture(run)
    counters = captures.counters
    assert captures.samples == PROMPTS and counters.lost == 0
    assert sum(counters.rejected.values()) == 1 and len(counters.rejected) == 1, counters.rejected
    assert content_digest(run) == expected
    assert bench.left_in_store(run) == 0


def test_sample_written_after_its_deadline_does_not_stay_in_the_store(bench: Bench) -> None:
    run = bench.run("run-late-written", read_timeout_s=0.5)
    bench.capture(run)
    time.sleep(LATE_S)
    assert bench.left_in_store(run) == 0


def test_lost_samples_are_listed_with_reasons_and_fail_the_stage(bench: Bench) -> None:
    run = bench.run("lost-run-damaged", max_attempts=1)
    with pytest.raises(RetrainError, match="1 of 12 samples"):
        bench.capture(run)
    [row] = [json.loads(line) for line in (stage_folder(run) / "lost.jsonl").read_text().splitlines()]
    assert row["prompt_id"] and row["reasons"]
    assert len(HiddenStateLog(stage_folder(run) / "log").entries()) == PROMPTS - 1
    assert bench.left_in_store(run) == 0


def test_every_fifth_put_that_fails_is_captured_again(expected: str, tmp_path: Path) -> None:
    """The answer is out when its put fails; the marker tells, long before the reader's deadline."""
    bench = Bench(tmp_path, PROMPTS, fault="writer-error", every=5)
    try:
        run = bench.run("fifth", read_timeout_s=60.0)
        captures = bench.capture(run)
        failed = len(range(0, PROMPTS, 5))
        assert list(captures.counters.rejected.values()) == [failed]
        assert captures.counters.seconds < 60 and content_digest(run) == expected
        assert bench.left_in_store(run) == 0
    finally:
        bench.close()
