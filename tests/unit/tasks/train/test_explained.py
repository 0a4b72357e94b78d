"""The trainer refuses a log whose states do not belong to its answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.errors import StageInputError
from tasks.stream.continuity import layer_links, mean_links
from tasks.stream.head import OutputHead
from tasks.stream.log import HiddenStateLog, IndexEntry, LogWriter
from tasks.train.explained import EVERY, MAX_SAMPLES, ArrivingCheck, check_explained
from tasks.train.loop import StopFlag
from tasks.train.run import train_draft
from tasks.train.settings import TrainSettings
from tests.unit.tasks.train.conftest import VOCAB, TinyWorld

Change = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def rewritten(
    world: TinyWorld,
    folder: Path,
    change: Change = lambda own, other: own,
    answer: Callable[[IndexEntry], tuple[int, ...]] = lambda entry: entry.answer_ids,
) -> HiddenStateLog:
    """The world's log with states or answers changed; `change(own, another sample's)`."""
    log = HiddenStateLog(world.log)
    entries = log.entries()
    writer = LogWriter(folder)
    for place, entry in enumerate(entries):
        states, ids = log.load(entry)
        other = log.load(entries[place - 1])[0]
        kept = {name: getattr(entry, name) for name in ("i", "prompt_id", "domain", "split")}
        kept |= {name: getattr(entry, name) for name in ("prompt_tokens", "finish_reason")}
        changed = change(states.clone(), other.repeat(3, 1, 1)[: len(states)])
        writer.append(**kept, answer_ids=answer(entry), hidden_states=changed, token_ids=ids)
    writer.close()
    return HiddenStateLog(folder)


def links_of(log: HiddenStateLog) -> tuple[float, ...]:
    loaded = [(entry, log.load(entry)[0]) for entry in log.entries()]
    return mean_links([layer_links(states[entry.prompt_tokens - 1 :]) for entry, states in loaded])


def settings(world: TinyWorld, folder: Path, **changes: Any) -> TrainSettings:
    known = {"temperature": 0.0, "layer_links": links_of(HiddenStateLog(world.log)), **changes}
    return world.settings(folder).model_copy(update=known)


def last_of_another(own: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    own[:, -1] = other[:, -1]
    return own


def auxiliary_of_another(own: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    own[:, :-1] = other[:, :-1]
    return own


def test_the_target_s_own_states_pass(world: TinyWorld, tmp_path: Path) -> None:
    log = HiddenStateLog(world.log)
    assert check_explained(settings(world, tmp_path), log, log.entries("train")) == ""


def test_states_of_another_sample_are_refused(world: TinyWorld, tmp_path: Path) -> None:
    log = rewritten(world, tmp_path / "log", last_of_another)
    with pytest.raises(StageInputError) as info:
        check_explained(settings(world, tmp_path), log, log.entries("train"))
    assert "of only 0 of 20 checked samples" in info.value.what and "0 (p0)" in info.value.what
    assert "and 15 more" in info.value.what and "--from stream" in info.value.hint


@pytest.mark.parametrize("temperature", [1.0, None])
def test_drawn_answers_are_not_expected_to_be_greedy(
    world: TinyWorld, tmp_path: Path, temperature: float | None
) -> None:
    """Second-best tokens: refused where the log says that it is greedy, else what drawing may give."""
    log = HiddenStateLog(world.log)
    weights = OutputHead(world.target, "float32")

    def second_best(entry: IndexEntry) -> tuple[int, ...]:
        rows = log.load(entry)[0][entry.prompt_tokens - 1 :, -1]
        logits = weights.normed(rows) @ weights.rows(torch.arange(VOCAB)).T
        return tuple(logits.topk(2).indices[:, 1].tolist())

    drawn = rewritten(world, tmp_path / "log", answer=second_best)
    entries = drawn.entries("train")
    assert check_explained(settings(world, tmp_path, temperature=temperature), drawn, entries) == ""
    with pytest.raises(StageInputError, match="of only 0 of 20"):
        check_explained(settings(world, tmp_path), drawn, entries)


def test_training_does_not_start_on_them(world: TinyWorld, tmp_path: Path) -> None:
    rewritten(world, tmp_path / "log", last_of_another)
    wanted = settings(world, tmp_path, log_dir=str(tmp_path / "log"))
    with pytest.raises(StageInputError, match="explains the answers of only"):
        train_draft(wanted, lambda *_: None, StopFlag())
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize("rows", [1, -1])
def test_rows_moved_by_one_are_refused(world: TinyWorld, tmp_path: Path, rows: int) -> None:
    log = rewritten(world, tmp_path / "log", lambda own, _: own.roll(rows, 0))
    with pytest.raises(StageInputError, match="explains the answers of only"):
        check_explained(settings(world, tmp_path), log, log.entries("train"))


def test_auxiliary_layers_of_another_sample_are_refused(world: TinyWorld, tmp_path: Path) -> None:
    """Only where it is known how similar good layers are: without that nothing is claimed."""
    log = rewritten(world, tmp_path / "log", auxiliary_of_another)
    with pytest.raises(StageInputError, match=r"auxiliary layers \[3\] of 20 of 20 checked samples"):
        check_explained(settings(world, tmp_path), log, log.entries("train"))
    assert check_explained(settings(world, tmp_path, layer_links=()), log, log.entries("train")) == ""


def test_one_bad_sample_is_named(world: TinyWorld, tmp_path: Path) -> None:
    seen = 0

    def change(own: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        nonlocal seen
        seen += 1
        return last_of_another(own, other) if seen == 8 else own

    log = rewritten(world, tmp_path / "log", change)
    with pytest.raises(StageInputError, match=r"of only 19 of 20 checked samples; not of sample 7 \(p7\)"):
        check_explained(settings(world, tmp_path), log, log.entries("train"))


def test_a_long_log_is_sampled(world: TinyWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, known = HiddenStateLog(world.log), settings(world, tmp_path)
    entries = log.entries("train") * 50
    loaded: list[int] = []
    real = HiddenStateLog.load

    def load(self: HiddenStateLog, entry: Any) -> Any:
        loaded.append(entry.i)
        return real(self, entry)

    monkeypatch.setattr(HiddenStateLog, "load", load)
    check_explained(known, log, entries)
    assert len(loaded) == MAX_SAMPLES and len(set(loaded)) > 10


def test_a_target_that_cannot_be_checked_is_said(world: TinyWorld, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    for path in world.target.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    config = (target / "config.json").read_text()
    (target / "config.json").write_text(config.replace("LlamaForCausalLM", "UnknownForCausalLM"))
    log = HiddenStateLog(world.log)
    note = check_explained(settings(world, tmp_path, target_dir=str(target)), log, log.entries("train"))
    assert "UnknownForCausalLM" in note and "not checked" in note


def test_samples_that_come_in_are_judged_few_of_them_in_the_end(world: TinyWorld, tmp_path: Path) -> None:
    good = HiddenStateLog(world.log).entries("train")
    read: list[int] = []

    class Counting(HiddenStateLog):
        def load(self, entry: IndexEntry) -> tuple[torch.Tensor, torch.Tensor]:
            read.append(entry.i)
            return super().load(entry)

    judge = ArrivingCheck(settings(world, tmp_path), Counting(world.log))
    for _ in range(10):
        judge(good)
    later = [turn for turn in range(MAX_SAMPLES, 200) if turn % EVERY == 0]
    assert read == [good[turn % 20].i for turn in (*range(MAX_SAMPLES), *later)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (last_of_another, r"sample 3 \(p3\) came in during training, and its last layer does not explain"),
        (auxiliary_of_another, r"sample 3 \(p3\) came in during training, and its auxiliary layers \[3\]"),
    ],
)
def test_a_sample_that_comes_in_with_other_states_is_refused(
    world: TinyWorld, tmp_path: Path, change: Change, message: str
) -> None:
    log = rewritten(world, tmp_path / "log", change)
    with pytest.raises(StageInputError, match=message) as info:
        ArrivingCheck(settings(world, tmp_path), log)(log.entries("train")[3:])
    assert "--from stream" in info.value.hint and info.value.where == str(tmp_path / "log")
