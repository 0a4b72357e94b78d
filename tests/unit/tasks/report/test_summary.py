"""`summary.json` for every ending, with exactly the documented keys."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tasks.errors import JobError
from tasks.report.closing import closing_lines
from tasks.report.page import render
from tasks.report.record import read_run, record_error
from tasks.report.summary import StageRow, build_summary, read_summary, write_summary
from tasks.run_folder import RunFolder

MakeRun = Callable[..., RunFolder]

KEYS = {
    "": "run_id profile status seconds stages capture draft evaluation decision publication mlflow prefect",
    "capture": "samples tokens trainable_tokens bytes target_prompt_tokens target_generated_tokens"
    " lost regenerated",
    "draft": "path parameters trained_parameters steps epochs",
    "evaluation": "tau_macro tau tau_live_pooled tau_replay_pooled tokens_per_step lossless"
    " incumbent_tau_macro worth worth_sentence",
    "decision": "promote reasons",
    "publication": "kind location revision serve_command",
    "mlflow": "tracking_uri parent_run_id",
    "prefect": "flow_run_id",
}


@pytest.mark.parametrize(
    "options",
    [
        {"status": "completed"},
        {"status": "held"},
        {"status": "failed", "stopped_at": "train"},
        {"status": "cancelled", "stopped_at": "stream"},
        {"status": "failed", "stopped_at": "validate"},
    ],
    ids=lambda options: "-".join(options.values()),
)
def test_every_ending_has_the_documented_keys(make_run: MakeRun, options: dict[str, str]) -> None:
    summary = json.loads((make_run(**options).path / "summary.json").read_text())
    for part, keys in KEYS.items():
        assert set(summary[part] if part else summary) == set(keys.split())
    assert summary["status"] == options["status"]
    assert [row["name"] for row in summary["stages"]] == [
        "validate", "serve", "stream", "train", "evaluate", "publish",
    ]  # fmt: skip
    assert all(set(row) == {"name", "status", "seconds"} for row in summary["stages"])


def test_values_come_from_the_stage_results(make_run: MakeRun) -> None:
    run = make_run(incumbent=True)
    summary, record = read_summary(run), read_run(run)
    assert record.evaluation is not None and record.captures is not None
    assert summary["evaluation"]["tau_macro"] == record.evaluation.replay.macro.value
    assert set(summary["evaluation"]["tau"]) == set(record.evaluation.replay.domains)
    assert set(summary["evaluation"]["tau"]["qa"]) == {"value", "low", "high", "prompts"}
    assert summary["evaluation"]["incumbent_tau_macro"] < summary["evaluation"]["tau_macro"]
    assert summary["capture"]["bytes"] == record.captures.bytes
    assert summary["decision"]["promote"] is True
    assert summary["draft"]["path"].endswith("04-train/draft")
    assert summary["prefect"]["flow_run_id"].startswith("1f3a9c2e")


def test_completed_without_promotion_is_held(make_run: MakeRun) -> None:
    run = make_run(status="held", summarise=False)
    assert build_summary(run, status="completed")["status"] == "held"
    assert build_summary(run)["status"] == "held"


def test_what_was_not_reached_is_null(make_run: MakeRun) -> None:
    summary = read_summary(make_run(status="failed", stopped_at="train"))
    assert summary["evaluation"]["tau_macro"] is None
    assert summary["decision"]["promote"] is None
    assert summary["publication"]["location"] is None
    assert {row["name"]: row["status"] for row in summary["stages"]} == {
        "validate": "completed", "serve": "completed", "stream": "completed",
        "train": "failed", "evaluate": "skipped", "publish": "skipped",
    }  # fmt: skip


def test_a_killed_run_is_summarised_from_its_folder(make_run: MakeRun) -> None:
    run = make_run(status="cancelled", stopped_at="train", summarise=False)
    summary = build_summary(run)
    assert summary["status"] == "failed"
    assert [row["status"] for row in summary["stages"]] == [
        "completed", "completed", "completed", "failed", "skipped", "skipped",
    ]  # fmt: skip
    assert summary["seconds"] == pytest.approx(4.2 + 71.4 + 142.8)


def test_damaged_files_never_raise(make_run: MakeRun) -> None:
    run = make_run()
    (run.path / "03-stream/manifest.json").write_text("{")
    (run.path / "05-evaluate/manifest.json").write_text('{"result": {"replay": 3}, "seconds": "x"}')
    (run.path / "run.json").write_text("[]")
    (run.path / "profile.json").unlink()
    (run.path / "04-train/metrics.jsonl").write_bytes(b'{"step": 1}\n{"step": \xff')
    (run.path / "summary.json").write_text("not json")
    summary = read_summary(run)
    assert summary["profile"] is None and summary["capture"]["samples"] is None
    assert len(read_run(run).training) == 1


def test_reused_stages_do_not_count_as_time_of_this_run(make_run: MakeRun) -> None:
    run = make_run(summarise=False)
    rows: list[Mapping[str, Any] | StageRow] = [
        StageRow(name="stream", status="reused", seconds=100.0),
        {"name": "train", "status": "completed", "seconds": 5},
    ]
    assert build_summary(run, rows, "completed")["seconds"] == 5.0


def test_summary_is_written_whole_and_read_back(make_run: MakeRun) -> None:
    run = make_run(summarise=False)
    summary = build_summary(run)
    assert write_summary(run, summary).name == "summary.json"
    assert read_summary(run) == summary


def test_errors_are_remembered_with_what_where_and_hint(make_run: MakeRun) -> None:
    run = make_run(summarise=False)
    record_error(run, "train", JobError("died", where="trainer", hint="look", log_tail=["last"]))
    error = read_run(run).error
    assert error is not None
    assert (error["stage"], error["what"], error["where"], error["hint"], error["log_tail"]) == (
        "train", "died", "trainer", "look", ["last"],
    )  # fmt: skip
    record_error(run, None, ValueError("odd"))
    error = read_run(run).error
    assert error is not None and error["what"] == "ValueError: odd" and error["expected"] is False


def test_results_of_an_earlier_attempt_are_not_shown_as_of_this_one(make_run: MakeRun) -> None:
    run = make_run(summarise=False)
    rows = [StageRow(name="validate", status="reused"), StageRow(name="serve", status="failed", seconds=3.0)]
    summary = build_summary(run, rows, "cancelled")
    assert summary["capture"]["samples"] is None and summary["draft"]["path"] is None
    assert summary["evaluation"]["tau_macro"] is None and summary["decision"]["promote"] is None
    assert summary["publication"]["location"] is None
    text = "\n".join(closing_lines(summary, run))
    assert "macro tau" not in text and "v0001" not in text
    page = render(read_run(run), summary)
    assert "Promoted" not in page and "tool_call" not in page


def test_a_killed_second_attempt_ends_where_its_first_manifest_is_missing(make_run: MakeRun) -> None:
    run = make_run(summarise=False)
    (run.path / "04-train/manifest.json").unlink()
    summary = build_summary(run, status="cancelled")
    assert [row["status"] for row in summary["stages"]] == [
        "completed", "completed", "completed", "failed", "skipped", "skipped",
    ]  # fmt: skip
    assert summary["status"] == "cancelled" and summary["evaluation"]["tau_macro"] is None
