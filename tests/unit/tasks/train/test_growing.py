"""Training on a log that still grows: each sample once an epoch, in the order of capture."""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.errors import StageInputError
from tasks.stream.log import HiddenStateLog, LogWriter
from tasks.stream.retention import consumed
from tasks.train import sources
from tasks.train.checkpoint import Checkpoints, Position
from tasks.train.journal import samples_of_steps
from tasks.train.loop import Stopped
from tasks.train.run import train_draft
from tasks.train.settings import WAITING, Overlap, TrainSettings
from tests.unit.tasks.train.arriving import (
    HELD_OUT,
    MIXED,
    SAMPLE_BYTES,
    TRAIN,
    TRAIN_ORDER,
    arriving,
    capture_again,
)
from tests.unit.tasks.train.conftest import TinyWorld
from tests.unit.tasks.train.test_loop import StopAfter, lines, newest_weights

WINDOW = 80 * 1024 + (HELD_OUT + 4) * SAMPLE_BYTES
"""Holds the held-out samples and four others."""


def growing(
    world: TinyWorld, root: Path, window: int | None = None, prompts: int = TRAIN, **train: Any
) -> TrainSettings:
    """Settings of a training on the log at `root/log`, which the test fills."""
    folder = root / "stage"
    folder.mkdir(exist_ok=True)
    train.setdefault("epochs", 1 if window else 2)
    train.setdefault("draft", {"vocab_size": None})
    overlap = Overlap(train_prompts=prompts, held_out_prompts=HELD_OUT, window_bytes=window)
    settings = world.settings(folder, **train)
    return settings.model_copy(update={"log_dir": str(root / "log"), "overlap": overlap})


def flat(folder: Path) -> list[int]:
    return list(itertools.chain.from_iterable(samples_of_steps(folder)))


def same_weights(left: Path, right: Path) -> bool:
    first, second = newest_weights(left), newest_weights(right)
    return first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)


def test_draft_does_not_depend_on_when_samples_come(
    world: TinyWorld, tmp_path: Path, quiet: Any, never: Any
) -> None:
    early, late = tmp_path / "early", tmp_path / "late"
    for root in (early, late):
        root.mkdir()
    capture_again(world.log, early / "log")
    first = train_draft(growing(world, early), quiet, never)
    waits = threading.Event()

    def report(_done: float, _total: float, _metrics: Any, note: str) -> None:
        if note == WAITING:
            waits.set()

    def late_ones(number: int) -> None:
        if number in MIXED[12:]:
            assert waits.wait(120), "training never had to wait"

    with arriving(world.log, late / "log", before=late_ones):
        second = train_draft(growing(world, late), report, never)
    steps = samples_of_steps(late / "stage")
    assert steps == samples_of_steps(early / "stage")
    epochs = flat(late / "stage")[:TRAIN], flat(late / "stage")[TRAIN:]
    assert tuple(epochs[0]) == TRAIN_ORDER
    assert sorted(epochs[1]) == sorted(TRAIN_ORDER) and epochs[1] != epochs[0]
    assert same_weights(early / "stage", late / "stage")
    assert first.files == second.files and first.epochs == 2
    held = [(row["step"], row["eal"]) for row in lines(late / "stage", "held_out")]
    assert held == [(row["step"], row["eal"]) for row in lines(early / "stage", "held_out")]
    assert held[0][0] == 0 and len(held) == 3


def test_resumed_training_equals_an_undisturbed_one(
    world: TinyWorld, tmp_path: Path, quiet: Any, never: Any
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for root in (whole, parts):
        root.mkdir()
        capture_again(world.log, root / "log", MIXED[:11], finish=False)
    with arriving(world.log, whole / "log"):
        first = train_draft(growing(world, whole, prompt_epochs=9), quiet, never)
    with pytest.raises(Stopped):
        train_draft(growing(world, parts, prompt_epochs=9), quiet, StopAfter(2))
    capture_again(world.log, parts / "log", MIXED[:17], finish=False)
    with pytest.raises(Stopped):
        train_draft(growing(world, parts, prompt_epochs=9), quiet, StopAfter(3))
    capture_again(world.log, parts / "log")
    with pytest.raises(Stopped):
        train_draft(growing(world, parts, prompt_epochs=9), quiet, StopAfter(3))
    second = train_draft(growing(world, parts, prompt_epochs=9), quiet, never)
    assert samples_of_steps(parts / "stage") == samples_of_steps(whole / "stage")
    assert same_weights(whole / "stage", parts / "stage")
    assert first.files == second.files


def test_prompts_have_a_loss_in_the_first_epochs_only(
    world: TinyWorld, tmp_path: Path, quiet: Any, never: Any
) -> None:
    capture_again(world.log, tmp_path / "log")
    settings = growing(world, tmp_path, prompt_epochs=1, epochs=2)
    batches = sources.growing_data(settings, torch.device("cpu"), quiet, never).batches
    place, learned = Position(identity=settings.identity()), []
    for place.epoch in range(2):
        place.step_in_epoch, tokens = 0, 0
        while not batches.is_over(place, None):
            tokens += int(batches.take(place).batch.loss_mask.sum())
            batches.advance(place)
        learned.append(tokens)
    batches.close()
    answers = sum(entry.trainable_tokens for entry in HiddenStateLog(tmp_path / "log").entries("train"))
    assert learned[0] > answers and learned[1] == answers


def test_stopped_while_it_waits_it_saves(world: TinyWorld, tmp_path: Path, quiet: Any) -> None:
    capture_again(world.log, tmp_path / "log", MIXED[:9], finish=False)
    with pytest.raises(Stopped):
        train_draft(growing(world, tmp_path), quiet, StopAfter(8))
    done = samples_of_steps(tmp_path / "stage")
    assert done and Checkpoints(tmp_path / "stage", keep=2).steps()[0] == len(done)


def test_window_of_a_few_samples_is_trained_through(
    world: TinyWorld, tmp_path: Path, quiet: Any, never: Any
) -> None:
    settings = growing(world, tmp_path, WINDOW, batch_tokens=512)
    with arriving(world.log, tmp_path / "log", window_bytes=WINDOW) as peaks:
        result = train_draft(settings, quiet, never)
    assert tuple(flat(tmp_path / "stage")) == TRAIN_ORDER
    assert 0 < peaks[0] <= WINDOW
    assert consumed(tmp_path / "log") == frozenset(range(TRAIN))
    left = {path.name for path in (tmp_path / "log").glob("*.safetensors")}
    assert len(left) < TRAIN and {f"hs_{i}.safetensors" for i in range(20, 24)} <= left
    assert result.epochs == 1 and len(HiddenStateLog(tmp_path / "log").entries()) == TRAIN + HELD_OUT


def test_window_for_little_more_than_one_sample_is_no_deadlock(
    world: TinyWorld, tmp_path: Path, quiet: Any, never: Any
) -> None:
    """No batch fills here: the writer waits, and the trainer gives up what it has."""
    window = 80 * 1024 + (HELD_OUT + 1) * SAMPLE_BYTES
    settings = growing(world, tmp_path, window, batch_tokens=4096)
    with arriving(world.log, tmp_path / "log", window_bytes=window) as peaks:
        train_draft(settings, quiet, never)
    assert tuple(flat(tmp_path / "stage")) == TRAIN_ORDER and peaks[0] <= window


def test_one_epoch_is_measured_on_the_way_once_all_held_out_samples_are_there(
    world: TinyWorld, tmp_path: Path, quiet: Any, never: Any
) -> None:
    held_out_first = sorted(range(TRAIN + HELD_OUT), key=lambda i: i < TRAIN)
    capture_again(world.log, tmp_path / "log", held_out_first)
    result = train_draft(growing(world, tmp_path, epochs=1), quiet, never)
    steps = [row["step"] for row in lines(tmp_path / "stage", "held_out")]
    assert steps[0] == 0 and len(steps) >= 5 and steps == sorted(set(steps))
    assert steps[-1] == result.steps
    assert result.held_out_eal == max(row["eal"] for row in lines(tmp_path / "stage", "held_out"))


def test_held_out_samples_that_come_last_are_measured_at_the_end_only(
    world: TinyWorld, tmp_path: Path, quiet: Any, never: Any
) -> None:
    capture_again(world.log, tmp_path / "log", range(TRAIN + HELD_OUT))
    result = train_draft(growing(world, tmp_path, epochs=1), quiet, never)
    rows = lines(tmp_path / "stage", "held_out")
    assert [row["step"] for row in rows] == [0, result.steps]
    untrained = tmp_path / "untrained"
    untrained.mkdir()
    train_draft(world.settings(untrained, max_steps=0, draft={"vocab_size": None}), quiet, never)
    (known,) = lines(untrained, "held_out")
    assert rows[0]["loss"] == known["loss"] != rows[1]["loss"]


def test_prompts_without_a_sample_are_not_waited_for(
    world: TinyWorld, tmp_path: Path, quiet: Any, never: Any
) -> None:
    capture_again(world.log, tmp_path / "log", MIXED[:15])
    result = train_draft(growing(world, tmp_path, prompts=40), quiet, never)
    there = [number for number in MIXED[:15] if number < TRAIN]
    assert flat(tmp_path / "stage")[: len(there)] == there
    assert result.epochs == 2
    rates = [row["lr"] for row in lines(tmp_path / "stage", "train")]
    assert rates == sorted(rates, reverse=True)


def test_samples_that_come_after_the_end_are_trained_too(
    world: TinyWorld, tmp_path: Path, quiet: Any, never: Any
) -> None:
    """A capture that failed for lost samples is resumed, after training had come to the end of the log."""
    capture_again(world.log, tmp_path / "log", MIXED[:15])
    train_draft(growing(world, tmp_path, epochs=1), quiet, never)
    capture_again(world.log, tmp_path / "log", MIXED)
    result = train_draft(growing(world, tmp_path, epochs=1), quiet, never)
    assert tuple(flat(tmp_path / "stage")) == TRAIN_ORDER and result.epochs == 1


def test_vocabulary_of_the_first_samples_is_kept(
    world: TinyWorld, tmp_path: Path, quiet: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_FEWEST_SAMPLES", 6)
    capture_again(world.log, tmp_path / "log", MIXED[:11], finish=False)
    settings = growing(world, tmp_path, draft={"vocab_size": 100})
    with pytest.raises(Stopped):
        train_draft(settings, quiet, StopAfter(1))
    stored = json.loads((tmp_path / "stage" / "work" / "vocabulary.json").read_text())
    entries = {entry.i: entry for entry in HiddenStateLog(tmp_path / "log").entries()}
    answers = {token for i in TRAIN_ORDER[:6] for token in entries[i].answer_ids}
    assert answers <= set(stored["tokens"]) and len(stored["tokens"]) == 100
    capture_again(world.log, tmp_path / "log")
    with pytest.raises(Stopped):
        train_draft(settings, quiet, StopAfter(1))
    again = json.loads((tmp_path / "stage" / "work" / "vocabulary.json").read_text())
    assert again == stored and "first 6 samples" in again["note"]


def test_other_captures_begin_training_anew(world: TinyWorld, tmp_path: Path, quiet: Any, never: Any) -> None:
    capture_again(world.log, tmp_path / "log", MIXED[:11], finish=False)
    with pytest.raises(Stopped):
        train_draft(growing(world, tmp_path), quiet, StopAfter(2))
    for path in (tmp_path / "log").iterdir():
        path.unlink()
    capture_again(world.log, tmp_path / "log", sorted(MIXED))
    train_draft(growing(world, tmp_path), quiet, never)
    assert flat(tmp_path / "stage")[:TRAIN] == sorted(TRAIN_ORDER)


def test_consumed_samples_cannot_be_trained_from_nothing(
    world: TinyWorld, tmp_path: Path, quiet: Any, never: Any
) -> None:
    with arriving(world.log, tmp_path / "log", window_bytes=WINDOW):
        train_draft(growing(world, tmp_path, WINDOW), quiet, never)
    with pytest.raises(StageInputError, match="consumed"):
        train_draft(growing(world, tmp_path, WINDOW, lr=0.004), quiet, never)


def test_log_that_ends_without_anything_to_learn_is_refused(
    world: TinyWorld, tmp_path: Path, quiet: Any, never: Any
) -> None:
    capture_again(world.log, tmp_path / "log", [20, 21])
    with pytest.raises(StageInputError, match="no answer token"):
        train_draft(growing(world, tmp_path), quiet, never)


def test_max_steps_ends_training_and_is_measured(
    world: TinyWorld, tmp_path: Path, quiet: Any, never: Any
) -> None:
    with arriving(world.log, tmp_path / "log", pause_s=0.01):
        result = train_draft(growing(world, tmp_path, max_steps=3), quiet, never)
    assert result.steps == 3 and result.held_out_eal is not None
    rows = lines(tmp_path / "stage", "held_out")
    assert [row["step"] for row in rows] == [0, 3]


def test_states_of_another_sample_that_come_later_end_training(
    world: TinyWorld, tmp_path: Path, quiet: Any, never: Any
) -> None:
    """The first samples are good: what is there when training starts says nothing about the others."""
    capture_again(world.log, tmp_path / "log", MIXED[:7], finish=False)
    settings = growing(world, tmp_path).model_copy(update={"temperature": 0.0})
    source = HiddenStateLog(world.log)
    entries = {entry.i: entry for entry in source.entries()}
    waits = threading.Event()

    def report(_done: float, _total: float, _metrics: Any, note: str) -> None:
        if note == WAITING:
            waits.set()

    def bad_ones() -> None:
        waits.wait(120)
        writer = LogWriter(tmp_path / "log", sync=False)
        for number in MIXED[7:]:
            entry = entries[number]
            states, ids = source.load(entry)
            other = source.load(entries[(number + 1) % TRAIN])[0].repeat(3, 1, 1)[: len(states)]
            states = torch.cat([states[:, :-1], other[:, -1:]], dim=1)
            known = {name: getattr(entry, name) for name in ("i", "prompt_id", "domain", "split")}
            known |= {name: getattr(entry, name) for name in ("prompt_tokens", "answer_ids")}
            writer.append(
                **known, finish_reason=entry.finish_reason, hidden_states=states.contiguous(), token_ids=ids
            )
        writer.finish()
        writer.close()

    thread = threading.Thread(target=bad_ones)
    thread.start()
    try:
        with pytest.raises(StageInputError, match="came in during training, and its last layer"):
            train_draft(settings, report, never)
    finally:
        waits.set()
        thread.join()
    assert waits.is_set() and set(flat(tmp_path / "stage")) <= set(MIXED[:7])
