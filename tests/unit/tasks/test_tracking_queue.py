"""The tracker never holds up a stage, keeps order, and loses nothing without saying so."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from profiles.load import load_profile
from tasks.run_folder import RunFolder, create_run
from tasks.tracking_queue import SPOOL, Refused, Tracker, _Follower
from tasks.tracking_text import MAX_NAME_CHARS, MAX_PARAM_CHARS, clean_name, clean_params, clean_value, finite


def a_run(tmp_path: Path) -> RunFolder:
    return create_run(tmp_path, "r1", load_profile("laptop").profile)


class Sink:
    """Takes operations, or refuses them as told."""

    def __init__(self) -> None:
        self.taken: list[dict[str, Any]] = []
        self.fault: Exception | None = None

    def __call__(self, operation: dict[str, Any]) -> str | None:
        if self.fault is not None:
            raise self.fault
        self.taken.append(dict(operation))
        return f"id-{operation['key']}" if operation["op"] == "open" else None


def tracker_of(run: RunFolder, sink: Any, said: list[str], answer_s: float = 2.0) -> Tracker:
    return Tracker(run, {"a": "b"}, said.append, sink, answer_s=answer_s)


def test_a_run_with_one_stage_is_recorded_in_order(tmp_path: Path) -> None:
    run, sink, said = a_run(tmp_path), Sink(), []
    tracker = tracker_of(run, sink, said)
    tracker.open({"x": 1}, run.path / "profile.json")
    tracker.start("train", {"lr": 0.1})
    tracker.log_metrics("train", 3, {"loss": 0.5})
    tracker.finish("train", "FINISHED", {"seconds": 2.0}, ())
    tracker.close("FINISHED")
    assert tracker.ids == {"r1": "id-r1", "r1:train": "id-r1:train"}
    ends = [(op["key"], op["status"]) for op in sink.taken if op["op"] == "end"]
    assert ends == [("r1:train", "FINISHED"), ("r1", "FINISHED")]
    child = next(op for op in sink.taken if op["op"] == "open" and op["key"] == "r1:train")
    assert child["parent"] == "r1"
    assert said == []


def test_a_dead_tracker_is_spooled_and_sent_by_the_next_attempt(tmp_path: Path) -> None:
    run, sink, said = a_run(tmp_path), Sink(), []
    sink.fault = ConnectionError("refused")
    tracker = tracker_of(run, sink, said, answer_s=0.2)
    tracker.open({}, run.path / "profile.json")
    tracker.start("train", {})
    tracker.log_metrics("train", 1, {"loss": 0.5})
    tracker.close("FAILED")
    assert (run.path / SPOOL).exists()
    assert any("cannot be reached" in line for line in said)
    assert any(SPOOL in line for line in said)

    sink.fault = None
    again = tracker_of(run, sink, [])
    again.open({}, run.path / "profile.json")
    again.close("FINISHED")
    assert not (run.path / SPOOL).exists()
    assert [op["rows"][0][:2] for op in sink.taken if op["op"] == "metrics"] == [["loss", 0.5]]


def test_a_tracker_that_never_answers_delays_only_by_the_bound(tmp_path: Path) -> None:
    run, said, release = a_run(tmp_path), [], threading.Event()

    def silent(operation: dict[str, Any]) -> str | None:
        release.wait(20)
        return None

    tracker = tracker_of(run, silent, said, answer_s=0.1)
    tracker.open({}, run.path / "profile.json")
    tracker.log_metrics("train", 1, {"loss": 1.0})
    tracker.close("KILLED")
    release.set()
    assert (run.path / SPOOL).exists()
    assert said[0].startswith("MLflow does not answer")


def test_a_refusal_is_told_and_the_rest_goes_on(tmp_path: Path) -> None:
    run, said, taken = a_run(tmp_path), [], []

    def picky(operation: dict[str, Any]) -> str | None:
        if operation["op"] == "params":
            raise Refused("no params")
        taken.append(operation["op"])
        return None

    tracker = tracker_of(run, picky, said)
    tracker.open({"x": 1}, run.path / "profile.json")
    tracker.close("FINISHED")
    assert "end" in taken
    assert "MLflow refused 1 records; everything is in the run folder" in said


def test_values_that_are_not_finite_are_counted_not_sent(tmp_path: Path) -> None:
    run, sink = a_run(tmp_path), Sink()
    tracker = tracker_of(run, sink, [])
    tracker.open({}, run.path / "profile.json")
    tracker.start("train", {})
    for step, loss in ((10, float("nan")), (11, float("inf")), (12, 0.5)):
        tracker.log_metrics("train", step, {"loss": loss})
    tracker.finish("train", "FINISHED", {}, ())
    tracker.close("FINISHED")
    rows = [row for op in sink.taken if op["op"] == "metrics" for row in op["rows"]]
    assert [(row[0], row[1], row[3]) for row in rows] == [("loss", 0.5, 12)]
    assert {"dspark.nonfinite_metrics": "2"} in [op.get("tags") for op in sink.taken]


def test_rows_of_the_metrics_file_are_followed_and_torn_ones_wait(tmp_path: Path) -> None:
    run, sink = a_run(tmp_path), Sink()
    tracker = tracker_of(run, sink, [])
    tracker.open({}, run.path / "profile.json")
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "split": "train", "loss": 9.0}\n')
    tracker.start("train", {})
    tracker.follow("train", path)
    with open(path, "a") as stream:
        stream.write('{"step": 2, "split": "held_out", "epoch": 1, "eal": 1.5}\n{"step": 3, "lo')
    tracker.finish("train", "FINISHED", {}, ())
    tracker.close("FINISHED")
    rows = [row for op in sink.taken if op["op"] == "metrics" for row in op["rows"]]
    assert [(row[0], row[1], row[3]) for row in rows] == [("held_out/eal", 1.5, 2)]


def test_names_and_values_fit_what_mlflow_takes() -> None:
    assert clean_name("accept@3 [x]") == "accept_3 _x_"
    assert len(clean_name("n" * 900)) <= MAX_NAME_CHARS
    assert clean_name("n" * 900 + "a") != clean_name("n" * 900 + "b")
    long = clean_value("v" * 9000)
    assert len(long) <= MAX_PARAM_CHARS
    assert "sha256:" in long
    assert clean_params({"a": {"b": [1, 2]}, "c": None}) == {"a.b": "[1, 2]", "c": "null"}
    assert finite({"a": 1.0, "b": float("nan")}) == ({"a": 1.0}, ["b"])


def test_rows_after_a_resume_are_followed_although_the_file_was_cut(tmp_path: Path) -> None:
    path, steps = tmp_path / "metrics.jsonl", []
    path.write_text("".join(f'{{"step": {step}, "loss": 0.5}}\n' for step in range(9)))
    follower = _Follower(path, lambda step, row, at: steps.append(step))
    path.write_text('{"step": 0, "loss": 0.5}\n')
    follower._read()
    with open(path, "a") as stream:
        stream.write('{"step": 1, "loss": 0.25}\n')
    follower._read()
    assert steps == [1]
