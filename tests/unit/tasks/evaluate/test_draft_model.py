"""Replay's blocks equal what the training model computes, and what its chain should draft."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.errors import StageInputError
from tasks.evaluate.draft_model import backbone, draft_blocks, load_draft, step_logits

ROWS, WIDTH, LAYERS = 20, 16, 2
ANCHORS = [5, 6, 7, 11, 15]


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden states `[T, L * H]`, token ids `[T]`, anchors `[A]`."""
    torch.manual_seed(2)
    return torch.randn(ROWS, LAYERS * WIDTH), torch.randint(1, 64, (ROWS,)), torch.tensor(ANCHORS)


def training_logits(model: Any) -> torch.Tensor:
    """Logits that upstream's own forward computes for the same anchors: `[A, K, V]`, true tokens before."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        return _training_logits(model, monkeypatch)


def _training_logits(model: Any, monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    from speculators.models.dflash import core as dflash
    from speculators.models.dspark import core as dspark

    hidden, ids, anchors = inputs()
    seen: dict[str, torch.Tensor] = {}
    chosen = (anchors, torch.ones(len(anchors), dtype=torch.bool))
    monkeypatch.setattr(dflash, "select_anchors", lambda *_: chosen)

    def keep(logits: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        seen["logits"] = logits
        return logits.sum(), {}

    monkeypatch.setattr(dspark, "compute_metrics", keep)
    monkeypatch.setattr(model.config.transformer_layer_config, "_attn_implementation", "sdpa")
    with torch.inference_mode():
        model.forward(
            hidden_states=hidden[None],
            input_ids=ids[None],
            loss_mask=torch.ones(1, ROWS),
            verifier_last_hidden_states=torch.zeros(1, ROWS, WIDTH),
            document_ids=torch.zeros(1, ROWS, dtype=torch.long),
            max_anchors=len(anchors),
        )
    return seen["logits"].view(len(anchors), model.block_size, -1)


SLIDING = {"sliding_window": 4, "use_sliding_window": True, "max_window_layers": 0}
MIXED = {**SLIDING, "layer_types": ["sliding_attention", "full_attention"]}


@pytest.mark.parametrize(
    ("options", "layers"),
    [
        ({"markov_head_type": "vanilla"}, {}),
        ({"markov_head_type": "gated"}, {}),
        ({"markov_head_type": "rnn"}, {}),
        ({}, MIXED),
        ({"sliding_window_non_causal": True}, MIXED),
    ],
    ids=["vanilla", "gated", "rnn", "one sliding layer", "sliding without order"],
)
def test_block_logits_equal_the_training_forward(
    options: dict[str, Any],
    layers: dict[str, Any],
    tmp_path: Path,
    target_dir: Path,
    make_draft: Callable[..., Path],
) -> None:
    model = load_draft(make_draft(tmp_path / "draft", layers=layers, **options), target_dir)
    hidden, ids, anchors = inputs()
    expected = training_logits(model)
    with torch.inference_mode():
        states, base = backbone(model, hidden, ids, anchors)
        for slot in range(model.block_size):
            previous = torch.stack([ids[anchor : anchor + slot + 1] for anchor in ANCHORS])
            got = step_logits(model, states, base, previous)
            torch.testing.assert_close(got, expected[:, slot], rtol=1e-4, atol=1e-4)


def test_all_anchors_at_once_draft_what_each_drafts_alone(target_dir: Path, draft_dir: Path) -> None:
    model = load_draft(draft_dir, target_dir)
    hidden, ids, anchors = inputs()
    together = draft_blocks(model, hidden, ids, anchors)
    for row, anchor in enumerate(ANCHORS):
        # Only what lies strictly before the anchor is there while serving.
        alone = draft_blocks(model, hidden[:anchor], ids[: anchor + 1], torch.tensor([anchor]))
        assert alone[0].tolist() == together[row].tolist()


def test_drafts_are_target_ids_of_the_pruned_vocabulary(target_dir: Path, draft_dir: Path) -> None:
    drafted = draft_blocks(load_draft(draft_dir, target_dir), *inputs())
    assert drafted.shape == (len(ANCHORS), 4)
    assert bool((drafted % 2 == 1).all()), "the draft's vocabulary holds odd tokens only"
    assert len(drafted.unique()) > 3


def test_the_chain_feeds_on_its_own_tokens(target_dir: Path, draft_dir: Path) -> None:
    model = load_draft(draft_dir, target_dir)
    hidden, ids, anchors = inputs()
    drafted = draft_blocks(model, hidden, ids, anchors)
    with torch.inference_mode():
        states, base = backbone(model, hidden, ids, anchors)
        previous = torch.cat([ids[anchors][:, None], drafted[:, :2]], dim=1)
        third = step_logits(model, states, base, previous).argmax(-1)
    assert (third + model.d2t[third]).tolist() == drafted[:, 2].tolist()


def test_a_draft_of_the_whole_vocabulary_takes_the_targets_head(
    tmp_path: Path, target_dir: Path, make_draft: Callable[..., Path]
) -> None:
    model = load_draft(make_draft(tmp_path / "draft", pruned=False), target_dir)
    assert model.lm_head.weight.shape[0] == 64
    assert bool(torch.isfinite(model.lm_head.weight).all())
    assert draft_blocks(model, *inputs()).shape == (len(ANCHORS), 4)


def test_a_draft_that_does_not_sample_from_the_anchor_drafts_one_less(
    tmp_path: Path, target_dir: Path, make_draft: Callable[..., Path]
) -> None:
    model = load_draft(make_draft(tmp_path / "draft", sample_from_anchor=False), target_dir)
    assert draft_blocks(model, *inputs()).shape == (len(ANCHORS), 3)


def test_a_missing_tensor_is_refused_by_name(
    tmp_path: Path, target_dir: Path, make_draft: Callable[..., Path]
) -> None:
    from safetensors.torch import load_file, save_file

    folder = make_draft(tmp_path / "draft")
    tensors = load_file(folder / "model.safetensors")
    del tensors["fc.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(StageInputError, match=r"fc\.weight"):
        load_draft(folder, target_dir)


def test_a_folder_without_a_draft_is_refused(tmp_path: Path, target_dir: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(StageInputError, match="cannot be loaded"):
        load_draft(tmp_path, target_dir)
