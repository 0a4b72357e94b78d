"""Drafts that are wrong in a way that only a measurement shows: each is found, and the remedy is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tasks.evaluate.draft_check import TrainingRecord, record_of
from tasks.evaluate.draft_check_try import Score
from tasks.evaluate.draft_check_variants import orders
from tests.unit.tasks.evaluate.replay_world import ReplayWorld
from tests.unit.tasks.train.conftest import AUX_LAYERS

LITTLE = {"min_first": 0.95}
"""The trained draft is right far more often than this."""


def diagnosis(world: ReplayWorld, folder: Path, draft: Path, **more: Any) -> str:
    _, verdict, _ = world.replay(folder, draft, **{**LITTLE, **more})
    assert verdict["trials"], "no correction was tried"
    return str(verdict["diagnosis"])


def reworked(draft: Path, change: Any) -> Path:
    """Store the draft's tensors under the names that `change` gives them."""
    tensors = load_file(draft / "model.safetensors")
    save_file(change(tensors), draft / "model.safetensors", metadata={"format": "pt"})
    return draft


def test_a_good_draft_is_not_suspected(replayed: ReplayWorld, tmp_path: Path) -> None:
    record = record_of(replayed.checkpoint).model_copy(update={"first_right": 0.95})
    _, verdict, _ = replayed.replay(tmp_path, replayed.draft, record=record, **LITTLE)
    assert verdict["diagnosis"] is None and verdict["trials"] == []
    assert verdict["first"] > LITTLE["min_first"]


def test_a_shifted_anchor_is_named(replayed: ReplayWorld, tmp_path: Path) -> None:
    draft = replayed.copy_draft(tmp_path / "draft", sample_from_anchor=False)
    said = diagnosis(replayed, tmp_path, draft)
    assert "with sample_from_anchor: true the same draft reaches" in said
    assert "its config.json is wrong" in said


def test_corrections_of_a_draft_from_elsewhere_are_tried_whatever_it_reaches(
    replayed: ReplayWorld, tmp_path: Path
) -> None:
    """A shifted anchor may leave more than any floor; a sound draft is not accused for being tried"""
    draft = replayed.copy_draft(tmp_path / "draft", sample_from_anchor=False)
    said = diagnosis(replayed, tmp_path, draft, min_first=0.0)
    assert "with sample_from_anchor: true" in said and "less" not in said
    (tmp_path / "sound").mkdir()
    _, verdict, _ = replayed.replay(tmp_path / "sound", replayed.draft, min_first=0.0)
    assert verdict["trials"] and verdict["diagnosis"] is None and verdict["notes"] == []


def test_places_that_are_right_either_way_say_nothing() -> None:
    """Four answers of 32 places: 31 % to 47 % is certain place by place, and would not be as two samples"""
    before = Score(1.2, (True,) * 40 + (False,) * 88)
    after = Score(1.55, (True,) * 60 + (False,) * 68)
    assert after.restores(before) and not before.restores(after)
    mixed = Score(1.55, (False,) * 40 + (True,) * 60 + (False,) * 28)
    assert mixed.first == after.first and not mixed.restores(before)
    assert not Score(1.25, after.hits).restores(before)


def test_permuted_layers_of_the_draft_are_named(replayed: ReplayWorld, tmp_path: Path) -> None:
    def swap(tensors: dict[str, Any]) -> dict[str, Any]:
        other = {"layers.0.": "layers.1.", "layers.1.": "layers.0."}
        return {other.get(name[:9], name[:9]) + name[9:]: value for name, value in tensors.items()}

    draft = reworked(replayed.copy_draft(tmp_path / "draft"), swap)
    assert "with its own layers 1 and 2 swapped the same draft reaches" in diagnosis(
        replayed, tmp_path, draft
    )


def test_captured_layers_in_another_order_are_named(replayed: ReplayWorld, tmp_path: Path) -> None:
    log = replayed.capture(tmp_path / "log", AUX_LAYERS[::-1])
    draft = replayed.copy_draft(tmp_path / "draft", aux_hidden_state_layer_ids=list(AUX_LAYERS[::-1]))
    said = diagnosis(replayed, tmp_path, draft, log=log)
    assert f"with layers in the order {list(AUX_LAYERS)} the same draft reaches" in said


def test_layers_that_are_off_by_one_are_named(replayed: ReplayWorld, tmp_path: Path) -> None:
    before = [layer - 1 for layer in AUX_LAYERS]
    log = replayed.capture(tmp_path / "log", before)
    draft = replayed.copy_draft(tmp_path / "draft", aux_hidden_state_layer_ids=before)
    said = diagnosis(replayed, tmp_path, draft, log=log)
    assert f"with layers {list(AUX_LAYERS)} the same draft reaches" in said
    assert f"its config.json names layers {before}" in said


def test_other_rotary_settings_are_named(replayed: ReplayWorld, tmp_path: Path) -> None:
    config = json.loads((replayed.draft / "config.json").read_text())
    layer = config["transformer_layer_config"]
    layer["rope_parameters"] = {"rope_type": "default", "rope_theta": 3.0}
    draft = replayed.copy_draft(tmp_path / "draft", transformer_layer_config=layer)
    said = diagnosis(replayed, tmp_path, draft)
    assert "with the target's rotary settings" in said and "'rope_theta': 3.0" in said


def forget(tensors: dict[str, Any]) -> dict[str, Any]:
    """The tensors of a draft that learnt nothing."""
    import torch

    random = torch.Generator().manual_seed(0)
    return {
        name: value
        if "norm" in name or name in ("d2t", "t2d", "lm_head.weight")
        else torch.randn(value.shape, generator=random).to(value.dtype) / 30
        for name, value in tensors.items()
    }


def test_a_record_of_few_conversations_raises_no_alarm(replayed: ReplayWorld, tmp_path: Path) -> None:
    """Less than training measured, but that was on three conversations: said in a note, with what to do"""
    draft = reworked(replayed.copy_draft(tmp_path / "draft"), forget)
    record = TrainingRecord(
        source="a test", first_right=0.1, first_places=30, first_conversations=3, first_error=0.06
    )
    _, verdict, _ = replayed.replay(tmp_path, draft, record=record)
    assert verdict["first"] < verdict["expected"] and verdict["trials"]
    assert verdict["diagnosis"] is None
    (note,) = verdict["notes"]
    assert "a test measured 10.0% of 30 in 3" in note and "no alarm: for a verdict evaluate more" in note


def test_rotary_settings_that_cost_little_are_noted(replayed: ReplayWorld, tmp_path: Path) -> None:
    config = json.loads((replayed.draft / "config.json").read_text())
    layer = config["transformer_layer_config"]
    layer["rope_parameters"] = {"rope_type": "default", "rope_theta": 9000.0}
    draft = replayed.copy_draft(tmp_path / "draft", transformer_layer_config=layer)
    _, verdict, _ = replayed.replay(tmp_path, draft)
    assert verdict["diagnosis"] is None
    (note,) = verdict["notes"]
    assert "its rotary settings are {'rope_type': 'default', 'rope_theta': 9000.0}, the target's" in note


def test_an_untrained_draft_is_said_to_be_one(replayed: ReplayWorld, tmp_path: Path) -> None:
    draft = reworked(replayed.copy_draft(tmp_path / "draft"), forget)
    record = record_of(replayed.checkpoint)
    said = diagnosis(replayed, tmp_path, draft, record=record.model_copy(update={"first_right": 0.9}))
    assert "the train stage measured 90.0%" in said
    assert "corrections" in said and "it is untrained, or was trained for another target" in said


def test_weights_that_say_nothing_are_told_apart(replayed: ReplayWorld, tmp_path: Path) -> None:
    def empty(tensors: dict[str, Any]) -> dict[str, Any]:
        kept = ("d2t", "t2d", "lm_head.weight")
        return {name: value if name in kept else value * 0 for name, value in tensors.items()}

    draft = reworked(replayed.copy_draft(tmp_path / "draft"), empty)
    assert "everywhere: its weights say nothing" in diagnosis(replayed, tmp_path, draft)


def test_a_record_decides_what_is_suspicious(replayed: ReplayWorld, tmp_path: Path) -> None:
    """A draft that was as bad in training is only bad; nothing is tried."""
    draft = replayed.copy_draft(tmp_path / "draft", sample_from_anchor=False)
    record = TrainingRecord(source="a test", first_right=0.0)
    _, verdict, _ = replayed.replay(tmp_path, draft, record=record)
    assert verdict["expected"] == 0.0 and verdict["diagnosis"] is None


def test_a_promise_on_the_card_bounds_the_first_token(replayed: ReplayWorld, tmp_path: Path) -> None:
    draft = replayed.copy_draft(tmp_path / "draft", sample_from_anchor=False)
    record = TrainingRecord(source="its model card", tau=4.0)
    _, verdict, _ = replayed.replay(tmp_path, draft, record=record)
    assert verdict["expected"] == pytest.approx(0.7 * 3.0 / 3)
    assert "its model card promises 4.00 tokens per round" in verdict["diagnosis"]


@pytest.mark.parametrize(("count", "found"), [(1, 0), (2, 1), (3, 5), (5, 7)])
def test_orders_are_few_and_different(count: int, found: int) -> None:
    shown = [order for _, order in orders(count)]
    assert len(shown) == found and all(sorted(order) == list(range(count)) for order in shown)
    assert len({tuple(order) for order in shown}) == found
