"""Rates fitted to a run whose truth is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from profiles.load import load_profile
from tasks.errors import UsageError
from tasks.plan.fit import fit_run, training_pieces
from tasks.plan.rates import Rates, rates_of, read_rates, write_rates
from tasks.run_folder import RunFolder, create_run

STEP_S, FIRST_S, MEASURE_S, TRAIN_START_S = 0.5, 3.0, 0.4, 9.0
CAPTURE_RATE, CAPTURE_START_S = 200.0, 6.0
ARM_START_S, TOKEN_S, REPLAY_S = 40.0, 0.2, 0.05
SAMPLES, TOKENS, TRAINED, HELD_OUT, EPOCHS, STEPS = 40, 4000, 30, 4, 2, 12


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def row(t: float, done: float, note: str = "", **metrics: float) -> dict[str, Any]:
    return {"t": 1000 + t, "done": done, "total": None, "unit": "samples", "metrics": metrics, "note": note}


def manifest(run: RunFolder, folder: str, seconds: float, result: dict[str, Any] | None = None) -> None:
    path = run.path / folder
    path.mkdir(parents=True, exist_ok=True)
    (path / "manifest.json").write_text(json.dumps({"seconds": seconds, "result": result or {}}))


def training() -> tuple[list[dict[str, Any]], list[dict[str, Any]], float]:
    """Progress, metrics and seconds of two epochs of six steps, the first one slow, with measurements."""
    now, progress, metrics = TRAIN_START_S, [row(0, 0, "reading captures")], []

    def measure(step: int) -> None:
        nonlocal now
        progress.append(row(now, step, "held-out evaluation"))
        now += MEASURE_S
        progress.append(row(now, step, "", eal=1.2))
        metrics.append({"step": step, "split": "held_out"})

    measure(0)
    for step in range(1, STEPS + 1):
        now += FIRST_S if step == 1 else STEP_S
        progress.append(row(now, step, "", tokens_per_s=500.0))
        metrics.append({"step": step, "split": "train", "tokens_per_s": 500.0})
        if step % (STEPS // EPOCHS) == 0:
            measure(step)
    return progress, metrics, now + 1.0


def known_run(root: Path, **overrides: Any) -> RunFolder:
    """A finished run of the laptop profile with the constants above."""
    profile = load_profile("laptop", {"train": {"epochs": EPOCHS}, **overrides}).profile
    run = create_run(root, "r1", profile)
    rows = [row(0, 0, tokens=0)] + [row(2 + 4.5 * i, 4 + 9 * i, tokens=400 + 900 * i) for i in range(5)]
    write_rows(run.progress / "capture.jsonl", rows)
    splits = {"train": TRAINED, "held_out": HELD_OUT, "evaluate": SAMPLES - TRAINED - HELD_OUT}
    captures = {
        "log": "log", "digest": "0", "target": "d", "layer_ids": [1], "hidden_size": 8, "dtype": "float32",
        "samples": SAMPLES, "tokens": TOKENS, "trainable_tokens": 9, "distinct_tokens": 9, "bytes": 9,
        "splits": splits, "counters": {},
    }  # fmt: skip
    manifest(run, "03-stream", CAPTURE_START_S + TOKENS / CAPTURE_RATE, captures)
    progress, metrics, seconds = training()
    write_rows(run.progress / "train.jsonl", progress)
    write_rows(run.path / "04-train" / "metrics.jsonl", metrics)
    draft = {
        "path": "draft", "files": {}, "step": STEPS, "steps": STEPS, "epochs": EPOCHS, "parameters": 9,
        "trained_parameters": 9, "draft_vocab_size": 350, "block_size": 4, "held_out_eal": 1.0, "metrics": {},
        "config": {},
    }  # fmt: skip
    manifest(run, "04-train", seconds, draft)
    write_rows(run.progress / "replay.jsonl", [row(0, 0), row(6 * REPLAY_S, 6)])
    for arm in ("draft", "plain"):
        answers = {"a": {"token_ids": [1] * 30}, "b": {"token_ids": [1] * 20}}
        path = run.path / "05-evaluate" / "arms" / f"{arm}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"seconds": 50 * TOKEN_S, "answers": answers, "starts": 1}))
    manifest(run, "05-evaluate", 2 * (ARM_START_S + 50 * TOKEN_S) + 6 * REPLAY_S)
    for folder, length in (("01-validate", 11.0), ("02-serve", 25.0), ("06-publish", 0.5)):
        manifest(run, folder, length)
    return run


def test_the_fit_finds_the_constants_that_the_run_was_made_of(tmp_path: Path) -> None:
    rates = fit_run(known_run(tmp_path))
    wanted = {
        "validate_s": 11.0, "serve_start_s": 25.0, "publish_s": 0.5, "capture_tokens_per_s": CAPTURE_RATE,
        "capture_start_s": CAPTURE_START_S, "sample_tokens": 100.0, "step_s": STEP_S,
        "held_out_sample_s": MEASURE_S / HELD_OUT, "arm_start_s": ARM_START_S, "live_token_s": TOKEN_S,
        "replay_answer_s": REPLAY_S,
        "train_start_s": TRAIN_START_S + (FIRST_S - STEP_S) + 1.0,  # the slow first step is start-up
        "step_fill": 100 * TRAINED * EPOCHS / (STEPS * 512),
    }  # fmt: skip
    found = {name: figure.value for name, figure in rates.rates.items()}
    assert found == pytest.approx(wanted)
    assert {(figure.source, figure.where) for figure in rates.rates.values()} == {("measured", "run r1")}
    assert (rates.runs, rates.samples, rates.steps, rates.draft_vocab_size) == (("r1",), SAMPLES, STEPS, 350)


def test_a_resumed_training_is_timed_by_its_last_attempt_or_not_at_all() -> None:
    progress, metrics, _ = training()
    assert len([piece for piece in training_pieces(progress, metrics) if piece.steps]) == STEPS
    assert training_pieces(progress[6:], metrics) == []


def test_what_cannot_be_fitted_is_said(tmp_path: Path) -> None:
    run = known_run(tmp_path / "a")
    (run.path / "04-train" / "manifest.json").unlink()
    with pytest.raises(UsageError, match="cannot be fitted: train is not there"):
        fit_run(run)
    with pytest.raises(UsageError, match="trained beside its capture"):
        fit_run(known_run(tmp_path / "b", stream={"overlap": True}))


def test_rates_are_read_back_from_a_file_a_folder_and_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETRAIN_DSPARK_RUNS", str(tmp_path))
    run = known_run(tmp_path)
    rates = rates_of("r1")
    write_rates(tmp_path / "rates.json", rates)
    assert rates == rates_of(str(run.path)) == rates_of(str(tmp_path / "rates.json"))
    with pytest.raises(UsageError, match="there is no run 'r2'"):
        rates_of("r2")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rates": {"step_s": {"value": None, "source": "measured"}}}, "step_s needs a value"),
        ({"rates": {"step_s": {"value": -1, "source": "measured"}}}, "step_s needs a value"),
        ({"rates": {"step_s": {"value": 1}}}, "must say whether it is measured"),
        ({"rates": {"steps": {"value": 1, "source": "measured"}}}, "rates.steps"),
        ({"format": 2}, "format"),
    ],
)
def test_a_wrong_document_is_named(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    path = tmp_path / "rates.json"
    good = Rates(batch_tokens=512, rates={}).model_dump(mode="json")
    path.write_text(json.dumps({**good, **change}))
    with pytest.raises(UsageError, match=said) as info:
        read_rates(path)
    assert info.value.where == str(path)
