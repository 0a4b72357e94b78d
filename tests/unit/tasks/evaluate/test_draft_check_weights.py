"""Stored tensors that contradict one another or the target."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tasks.errors import StageInputError
from tasks.evaluate.draft_check_weights import check_weights
from tests.unit.tasks.evaluate.conftest import save_target

Change = Callable[[dict[str, Tensor]], object]


@pytest.fixture
def changed(draft_dir: Path, tmp_path: Path) -> Callable[[Change], Path]:
    """A copy of the draft with changed tensors. Its vocabulary is the odd ones of 64 tokens."""

    def make(change: Change) -> Path:
        folder = tmp_path / "changed"
        shutil.copytree(draft_dir, folder)
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    return make


def test_a_whole_draft_passes(draft_dir: Path, target_dir: Path) -> None:
    assert check_weights(draft_dir, target_dir) == []


def test_a_draft_of_the_whole_vocabulary_has_no_map(
    tmp_path: Path, target_dir: Path, make_draft: Callable[..., Path]
) -> None:
    assert check_weights(make_draft(tmp_path / "draft", pruned=False), target_dir) == []


def test_rounding_is_no_fault(changed: Callable[[Change], Path], target_dir: Path) -> None:
    folder = changed(lambda t: t.update({"lm_head.weight": t["lm_head.weight"].bfloat16()}))
    assert check_weights(folder, target_dir) == []


def _other_map(tensors: dict[str, Tensor]) -> None:
    """Both maps of an earlier vocabulary, the even tokens; the head's rows are those of the odd ones."""
    tensors["t2d"] = ~tensors["t2d"].bool()
    tensors["d2t"] = torch.arange(0, 64, 2) - torch.arange(32)


def _trained_head(tensors: dict[str, Tensor]) -> None:
    noise = torch.randn(tensors["lm_head.weight"].shape, generator=torch.Generator().manual_seed(0))
    tensors["lm_head.weight"] += 0.002 * noise


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            _other_map,
            r"32 of 32 rows .* draft id 0 stands for token 0, its row is nearest to that of token 1",
        ),
        (lambda t: t["t2d"].fill_(True), r"d2t names 32 tokens, t2d 64, and they differ in 32: token 0"),
        (lambda t: t["d2t"].__setitem__(3, 1), r"d2t names 32 tokens, .* is in d2t only"),
        (lambda t: t["d2t"].__setitem__(31, 40), r"d2t names token 71, t2d has 64 tokens"),
        (lambda t: t["d2t"].__setitem__(1, 0), r"d2t names 32 tokens, only 31 of them different"),
        (lambda t: t.update(d2t=t["d2t"][:30]), r"d2t has 30 entries, lm_head\.weight 32 rows"),
        (lambda t: t.pop("t2d"), r"pruned, but it lacks t2d"),
        (lambda t: t["fc.weight"].__setitem__((0, 0), float("nan")), r"fc\.weight holds values that are not"),
    ],
    ids=["earlier vocabulary", "t2d", "moved", "outside", "twice", "short", "absent", "not finite"],
)
def test_a_stale_map_is_named(
    change: Change, words: str, changed: Callable[[Change], Path], target_dir: Path
) -> None:
    with pytest.raises(StageInputError, match=words):
        check_weights(changed(change), target_dir)


def test_a_head_that_was_trained_on_is_no_fault(changed: Callable[[Change], Path], target_dir: Path) -> None:
    (note,) = check_weights(changed(_trained_head), target_dir)
    assert "differ from the target's: trained on" in note


def test_another_target_of_the_same_shape_is_recognised(draft_dir: Path, tmp_path: Path) -> None:
    other = save_target(tmp_path / "other", seed=7)
    with pytest.raises(StageInputError, match=r"32 of 32 rows of lm_head\.weight are not the target's"):
        check_weights(draft_dir, other)
