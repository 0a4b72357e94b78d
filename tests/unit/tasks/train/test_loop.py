"""Training: the loss falls, a resumed run is the same run, bad numbers and signals are survived."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tasks.errors import JobError, RetrainError, StageInputError
from tasks.stream.log import HiddenStateLog
from tasks.train import adapter
from tasks.train.checkpoint import Checkpoints, Position
from tasks.train.loop import Loop, StopFlag, Stopped, is_better
from tasks.train.run import train_draft, without_gain
from tasks.train.selection import Selection
from tasks.train.settings import TrainSettings
from tests.unit.tasks.train.conftest import TinyWorld


def lines(folder: Path, split: str) -> list[dict[str, Any]]:
    text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
    return [row for row in map(json.loads, text.splitlines()) if row["split"] == split]


def newest_weights(folder: Path) -> dict[str, torch.Tensor]:
    checkpoints = Checkpoints(folder, keep=2)
    return checkpoints.tensors(checkpoints.steps()[0])[0]


class StopAfter(StopFlag):
    """Raises the flag after some reads, as a signal would between steps."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    @property
    def raised(self) -> bool:  # type: ignore[override]
        self.left -= 1
        return self.left < 0


def test_loss_falls_and_acceptance_rises(world: TinyWorld, tmp_path: Path, quiet: Any, never: Any) -> None:
    result = train_draft(world.settings(tmp_path, epochs=14, anchors=48), quiet, never)
    train, held = lines(tmp_path, "train"), lines(tmp_path, "held_out")
    assert train[-1]["loss"] < 0.8 * train[0]["loss"]
    assert held[0]["step"] == 0 and len(held) == 15
    assert result.held_out_eal == max(row["eal"] for row in held)
    assert result.held_out_eal is not None and result.held_out_eal > held[0]["eal"]
    assert result.step in [row["step"] for row in held if row["eal"] == result.held_out_eal]
    assert {"ce_loss", "tv_loss", "confidence_loss", "accept_len", "position_0_acc", "lr"} <= train[-1].keys()


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_interrupted_and_resumed_run_equals_an_uninterrupted_one(
    world: TinyWorld, tmp_path: Path, quiet: Any, never: Any, optimizer: str
) -> None:
    options: dict[str, Any] = {"optimizer": optimizer, "muon_lr": 0.02, "epochs": 2}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    first = train_draft(world.settings(whole, **options), quiet, never)
    with pytest.raises(Stopped):
        train_draft(world.settings(parts, **options), quiet, StopAfter(4))
    assert Checkpoints(parts, keep=2).steps()[0] == 5
    with pytest.raises(Stopped):
        train_draft(world.settings(parts, **options), quiet, StopAfter(3))
    second = train_draft(world.settings(parts, **options), quiet, never)
    left, right = newest_weights(whole), newest_weights(parts)
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert torch.equal(value, right[name]), name
    assert (first.files, first.step, first.steps) == (second.files, second.step, second.steps)
    measured = [[row["eal"] for row in lines(folder, "held_out")] for folder in (whole, parts)]
    assert measured[0] == measured[1]


class Gone(BaseException):
    """The end of a process in the middle of something."""


def test_measurement_that_no_checkpoint_knows_of_is_made_again_once(
    world: TinyWorld, tmp_path: Path, quiet: Any, never: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the row of a measurement and the checkpoint behind it."""
    settings = world.settings(tmp_path, epochs=2)
    close, evaluate = Loop._close, Selection.evaluate

    def save_and_close(self: Loop, ends_epoch: bool) -> None:
        self._save_now()
        close(self, ends_epoch)

    def measure_and_go(self: Selection, place: Position) -> None:
        evaluate(self, place)
        if place.step > 0:
            raise Gone

    with monkeypatch.context() as patched:
        patched.setattr(Loop, "_close", save_and_close)
        patched.setattr(Selection, "evaluate", measure_and_go)
        with pytest.raises(Gone):
            train_draft(settings, quiet, never)
    steps = [row["step"] for row in lines(tmp_path, "held_out")]
    assert steps[-1] in Checkpoints(tmp_path, keep=2).steps(), "a checkpoint from before the measurement"
    train_draft(settings, quiet, never)
    after = [row["step"] for row in lines(tmp_path, "held_out")]
    assert after == sorted(set(after)) and after[: len(steps)] == steps


def test_other_configuration_is_refused_and_an_end_is_kept(
    world: TinyWorld, tmp_path: Path, quiet: Any, never: Any
) -> None:
    first = train_draft(world.settings(tmp_path, epochs=1), quiet, never)
    with pytest.raises(StageInputError, match=r"train.lr is 0.01 there and 0.005 here"):
        train_draft(world.settings(tmp_path, epochs=1, lr=0.005), quiet, never)
    steps_seen: list[float] = []

    def report(done: float, _total: float, _metrics: Mapping[str, float], _note: str) -> None:
        steps_seen.append(done)

    assert train_draft(world.settings(tmp_path, epochs=1), report, never).files == first.files
    assert steps_seen == []


@pytest.mark.parametrize("amount", [0, 1 << 20])
def test_rows_say_how_long_training_waited_for_data(
    world: TinyWorld, tmp_path: Path, quiet: Any, never: Any, amount: int
) -> None:
    train_draft(world.settings(tmp_path, prefetch_bytes=amount), quiet, never)
    shares = [row["data_wait"] for row in lines(tmp_path, "train")]
    assert all(0 < share < 1 for share in shares), "taking a batch takes some time, and not all of it"


def test_nothing_is_read_when_training_has_ended(world: TinyWorld, tmp_path: Path, quiet: Any) -> None:
    """Batches that were to be read ahead would keep a process that was asked to stop."""
    before = set(threading.enumerate())
    with pytest.raises(Stopped):
        train_draft(world.settings(tmp_path), quiet, StopAfter(2))
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert not {name for name in left if name.startswith("read-ahead")}


def test_zero_steps_export_the_untrained_draft(
    world: TinyWorld, tmp_path: Path, quiet: Any, never: Any
) -> None:
    result = train_draft(world.settings(tmp_path, max_steps=0), quiet, never)
    assert (result.step, result.steps, result.epochs) == (0, 0, 0)
    assert result.held_out_eal is not None and result.held_out_eal < 1.2
    assert (tmp_path / "draft" / "model.safetensors").is_file()


def test_max_steps_bounds_the_run(world: TinyWorld, tmp_path: Path, quiet: Any, never: Any) -> None:
    assert train_draft(world.settings(tmp_path, max_steps=3), quiet, never).steps == 3


def poisoned(steps: range) -> Callable[..., Any]:
    """`run_blocks` whose loss is NaN at the given training calls."""
    real, calls = adapter.run_blocks, iter(range(10_000))

    def run(model: Any, *rest: Any) -> Any:
        outcome = real(model, *rest)
        if model.training and next(calls) in steps:
            outcome.loss = outcome.loss * float("nan")
        return outcome

    return run


def test_step_without_finite_loss_is_skipped_and_counted(
    world: TinyWorld, tmp_path: Path, quiet: Any, never: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "run_blocks", poisoned(range(1, 4)))
    result = train_draft(world.settings(tmp_path, epochs=2), quiet, never)
    assert result.metrics["skipped_steps"] == 3
    assert any("3 steps were skipped" in note for note in result.notes)
    assert result.held_out_eal is not None and result.held_out_eal > 1.0
    assert all(bool(torch.isfinite(value).all()) for value in newest_weights(tmp_path).values())


def test_too_many_bad_steps_in_a_row_end_the_run(
    world: TinyWorld, tmp_path: Path, quiet: Any, never: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "run_blocks", poisoned(range(2, 1000)))
    with pytest.raises(RetrainError, match="4 steps in a row") as raised:
        train_draft(world.settings(tmp_path, epochs=3, max_bad_steps=4), quiet, never)
    kept = list(Path(raised.value.where).iterdir())
    assert [path.name for path in kept] == ["step-6-rank-0-pack-0.safetensors"]
    batch = load_file(kept[0])
    assert {"token_ids", "aux_states", "last_states", "loss_mask", "anchors"} <= batch.keys()
    assert batch["aux_states"].shape[0] == len(batch["token_ids"])


@pytest.mark.parametrize("options", [{"packs_per_step": 3}, {"gradient_checkpointing": True}])
def test_run_in_parts_equals_an_uninterrupted_one(
    world: TinyWorld, tmp_path: Path, quiet: Any, never: Any, options: dict[str, Any]
) -> None:
    first = train_draft(world.settings(tmp_path / "whole", **options), quiet, never)
    for steps in (3, 1):
        with pytest.raises(Stopped):
            train_draft(world.settings(tmp_path / "parts", **options), quiet, StopAfter(steps))
    second = train_draft(world.settings(tmp_path / "parts", **options), quiet, never)
    assert (first.files, first.steps) == (second.files, second.steps)


def test_packs_of_a_step_are_accumulated_and_bounded(
    world: TinyWorld, tmp_path: Path, quiet: Any, never: Any
) -> None:
    one = train_draft(world.settings(tmp_path / "one", epochs=1), quiet, never)
    many = train_draft(world.settings(tmp_path / "many", epochs=1, packs_per_step=4), quiet, never)
    assert many.steps == -(-one.steps // 4)
    assert many.metrics["train_tokens"] == one.metrics["train_tokens"]
    some = train_draft(world.settings(tmp_path / "some", max_steps=2, packs_per_step=4), quiet, never)
    assert some.steps == 2


def test_recomputing_layers_changes_no_bit(world: TinyWorld, tmp_path: Path, quiet: Any, never: Any) -> None:
    plain = train_draft(world.settings(tmp_path / "plain", max_steps=3), quiet, never)
    again = train_draft(
        world.settings(tmp_path / "again", max_steps=3, gradient_checkpointing=True), quiet, never
    )
    assert plain.files == again.files


def test_training_stops_when_acceptance_no_longer_rises(
    world: TinyWorld, tmp_path: Path, quiet: Any, never: Any
) -> None:
    """At so low a rate nothing is learned: two measurements after the first one end it."""
    result = train_draft(world.settings(tmp_path, epochs=9, lr=1e-9, early_stopping=2), quiet, never)
    assert result.epochs == 2 and len(lines(tmp_path, "held_out")) == 3
    assert any("did not rise in 2 measurements in a row" in note for note in result.notes)
    again = train_draft(world.settings(tmp_path, epochs=9, lr=1e-9, early_stopping=2), quiet, never)
    assert again.steps == result.steps


def test_wall_clock_budget_ends_training_over_all_attempts(
    world: TinyWorld, tmp_path: Path, quiet: Any, never: Any
) -> None:
    with pytest.raises(Stopped):
        train_draft(world.settings(tmp_path, epochs=300), quiet, StopAfter(4))
    result = train_draft(world.settings(tmp_path, epochs=300, max_wall_s=1e-6), quiet, never)
    assert result.steps == 5 and result.epochs == 0
    assert [row["step"] for row in lines(tmp_path, "held_out")] == [0, 5]
    assert any("train.max_wall_s 1e-06" in note for note in result.notes)


def test_failed_write_of_a_checkpoint_ends_training_with_its_name(
    world: TinyWorld, tmp_path: Path, quiet: Any, never: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path) -> None:
        if "step-" in folder.name:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("tasks.train.checkpoint.sync_folder", full)
    with pytest.raises(JobError, match=r"of step \d+ could not be written: OSError.*No space left"):
        train_draft(world.settings(tmp_path, epochs=300, checkpoint_every_s=1e-6), quiet, never)
    assert len(lines(tmp_path, "train")) < 10, "it went on"
    monkeypatch.undo()
    assert train_draft(world.settings(tmp_path, epochs=300, max_steps=2), quiet, never).steps == 2


def test_draft_vocabulary_is_clamped_with_a_note(
    world: TinyWorld, tmp_path: Path, quiet: Any, never: Any
) -> None:
    result = train_draft(world.settings(tmp_path, max_steps=1, draft={"vocab_size": 500}), quiet, never)
    assert result.draft_vocab_size < 500
    assert any("was lowered to" in note for note in result.notes)


def test_captures_without_answers_are_refused(
    world: TinyWorld, tmp_path: Path, quiet: Any, never: Any
) -> None:
    empty = tmp_path / "log"
    empty.mkdir()
    settings = world.settings(tmp_path).model_copy(update={"log_dir": str(empty)})
    with pytest.raises(StageInputError, match="no answer token"):
        train_draft(settings, quiet, never)


def test_without_held_out_samples_the_last_weights_are_exported(
    world: TinyWorld, tmp_path: Path, quiet: Any, never: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = HiddenStateLog.entries
    monkeypatch.setattr(
        HiddenStateLog, "entries", lambda self, split=None: [] if split == "held_out" else real(self, split)
    )
    result = train_draft(world.settings(tmp_path, epochs=1), quiet, never)
    assert result.step == result.steps
    assert any("no sample is held out" in note for note in result.notes)
    assert result.held_out_eal is None


def test_identity_ignores_the_machine_but_not_the_training(world: TinyWorld, tmp_path: Path) -> None:
    def identity(**options: Any) -> str:
        settings: TrainSettings = world.settings(tmp_path, **options)
        return settings.identity()

    assert identity() == identity(threads=2, keep_checkpoints=5, compile=True, prefetch_bytes=0)
    assert identity() != identity(lr=0.02)


@pytest.mark.parametrize(
    ("eal", "loss", "better"),
    [(1.1, 9.0, True), (1.0, 2.0, True), (1.0, 1.9, True), (1.0, 2.1, False), (0.9, 0.1, False),
     (float("nan"), 0.1, False), (1.0, float("nan"), False)],
)  # fmt: skip
def test_best_is_by_acceptance_and_by_loss_where_that_is_equal(eal: float, loss: float, better: bool) -> None:
    best = Position("x", best_eal=1.0, best_metrics={"loss": 2.0})
    assert is_better({"eal": eal, "loss": loss}, best) is better
    assert is_better({"eal": eal, "loss": loss}, Position("x")) is (eal == eal)


def test_training_without_gain_is_said() -> None:
    start = Position("x", untrained_eal=1.0, best_eal=1.0)
    assert without_gain(start, 0) == ""
    assert without_gain(start, 8).endswith("(1.000); the untrained draft is exported")
    assert without_gain(start, 8, "initial").startswith("training never beat the initial draft's")
    assert without_gain(Position("x", step=8, untrained_eal=1.0, best_eal=1.0), 8).endswith(
        "step 8 is exported"
    )
    assert without_gain(Position("x", step=8, untrained_eal=1.0, best_eal=1.2), 8) == ""
