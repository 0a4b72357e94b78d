"""The laptop flow with training beside the capture, smaller, on real engines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.stages import STAGE_NAMES

pytestmark = [pytest.mark.verify("streaming"), pytest.mark.timeout(2400)]
SMALLER = (
    "prompts.train_per_domain=6",
    "prompts.evaluate_per_domain=2",
    "stream.max_new_tokens=28",
    "stream.concurrency=4",
    "evaluate.replay_max_new_tokens=24",
    "evaluate.live.per_domain=1",
    "evaluate.live.max_new_tokens=16",
)
KINDS = {
    "all": ("stream.overlap=true", "train.epochs=2"),
    "window": (
        "stream.retention=window",
        "stream.window_bytes=40000000",
        "train.epochs=1",
        "train.draft.vocab_size=null",
    ),
}


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("kind", KINDS)
def test_training_runs_beside_the_capture(
    kind: str,
    tmp_path: Path,
    command: Callable[..., Any],
    left_running: Callable[[Any], list[str]],
    record_property: Any,
) -> None:
    """Training begins with the first captures, and the target ends before training does"""
    words = [word for assignment in (*SMALLER, *KINDS[kind]) for word in ("--set", assignment)]
    done = command(tmp_path / "runs", "run", "-p", "laptop", *words, timeout_s=2300)
    assert "Traceback" not in done.output, done.output[-4000:]
    assert [stage["status"] for stage in done.summary["stages"]] == ["completed"] * len(STAGE_NAMES)
    assert done.summary["status"] in ("completed", "held")
    run = done.run.path
    captured, trained = rows(run / "progress" / "capture.jsonl"), rows(run / "progress" / "train.jsonl")
    assert trained[0]["t"] < captured[-1]["t"], "training began when the capture was over"
    target_ended = (run / "logs" / "target.log").stat().st_mtime
    assert captured[-1]["t"] < target_ended < trained[-1]["t"], "the target outlived training"
    record_property("trained_beside_s", round(captured[-1]["t"] - trained[0]["t"], 1))
    record_property("trained_after_target_s", round(trained[-1]["t"] - target_ended, 1))
    assert done.stage_result("04-train")["config"]["captures"] == done.stage_result("03-stream")["digest"]
    entries = rows(run / "03-stream" / "log" / "index.jsonl")
    assert len(entries) == done.summary["capture"]["samples"]
    first_epoch = [row["samples"] for row in rows(run / "04-train" / "samples.jsonl") if row["epoch"] == 0]
    trained_once = [number for samples in first_epoch for number in samples]
    assert len(trained_once) == len(set(trained_once)) == done.stage_result("03-stream")["splits"]["train"]
    assert left_running(done) == []
