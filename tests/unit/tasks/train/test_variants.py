"""Every variant of the draft: counted, exported, loaded back by upstream, and equal to the trained one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from profiles.schema import Draft
from tasks.errors import JobError
from tasks.stream.log import HiddenStateLog
from tasks.train import adapter
from tasks.train.data import CaptureReader, make_batch
from tasks.train.export import ExportedFor, check_export, expected_tensors, export_draft, read_shape
from tasks.train.loss import LossWeights
from tasks.train.model import count_parameters
from tasks.train.size import trained_parameters
from tasks.train.vocabulary import answer_counts, choose_vocabulary
from tests.unit.tasks.train.conftest import AUX_LAYERS, HIDDEN, VOCAB, TinyWorld

VARIANTS: list[dict[str, Any]] = [
    {},
    {"vocab_size": None},
    {"markov_head_type": "gated"},
    {"markov_head_type": "rnn"},
    {"markov_rank": 0},
    {"markov_rank": 0, "confidence_head": False, "sample_from_anchor": False},
    {"confidence_with_markov": False},
    {"confidence_head": False},
    {"sample_from_anchor": False, "markov_head_type": "rnn"},
    {"sliding_window": 5},
    {"sliding_window": 5, "full_attention_layers": [1], "intermediate_size": 48},
]


def built(world: TinyWorld, seed: int = 0, **draft: Any) -> Any:
    values = {"num_layers": 2, "block_size": 4, "markov_rank": 8, "vocab_size": 60} | draft
    shape = Draft.model_validate(values)
    counts = answer_counts(HiddenStateLog(world.log).entries("train"))
    vocabulary = choose_vocabulary(counts, shape.vocab_size, VOCAB)
    return adapter.build_draft(world.target, shape, AUX_LAYERS, vocabulary, seed)


def exported(world: TinyWorld, folder: Path, dtype: torch.dtype = torch.float32, **draft: Any) -> Any:
    """A draft with weights far from their start, and its export in `folder`."""
    model = built(world, **draft)
    random = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for value in adapter.trained_state(model).values():
            value.add_(0.3 * torch.randn(value.shape, generator=random))
    weights = {name: value.detach().clone() for name, value in adapter.trained_state(model).items()}
    export_draft(model, weights, folder, ExportedFor("tiny", None, world.target), dtype)
    return model


@pytest.mark.parametrize("draft", VARIANTS, ids=str)
def test_parameters_are_as_many_as_the_formula_says(world: TinyWorld, draft: dict[str, Any]) -> None:
    model = built(world, **draft)
    counted = sum(value.numel() for value in adapter.trained_state(model).values())
    assert counted == trained_parameters(adapter.draft_shape(model))
    assert f"{counted:,}" in count_parameters(model)


@pytest.mark.parametrize("draft", VARIANTS, ids=str)
def test_export_loads_and_computes_the_same(world: TinyWorld, tmp_path: Path, draft: dict[str, Any]) -> None:
    model = exported(world, tmp_path / "draft", **draft)
    shape = read_shape(tmp_path / "draft")
    assert check_export(tmp_path / "draft", shape) > trained_parameters(shape)
    loaded = adapter.load_draft(tmp_path / "draft", world.target, torch.float32)
    reader = CaptureReader(HiddenStateLog(world.log), 3, HIDDEN, torch.float32, 0)
    batch = make_batch(reader, HiddenStateLog(world.log).entries("train")[:3])
    anchors = batch.anchor_positions()[::5]
    weights = LossWeights(0.1, 0.9, 1.0, 4.0)
    ours, theirs = (adapter.run_blocks(one.eval(), batch, anchors, weights) for one in (model, loaded))
    assert torch.equal(ours.accept_rate, theirs.accept_rate)
    assert float(ours.loss.detach()) == float(theirs.loss.detach())


def test_bfloat16_export_is_compared_as_it_was_rounded(world: TinyWorld, tmp_path: Path) -> None:
    exported(world, tmp_path / "draft", torch.bfloat16)
    stored = load_file(tmp_path / "draft" / "model.safetensors")
    assert stored["fc.weight"].dtype == torch.bfloat16 == stored["lm_head.weight"].dtype


@pytest.mark.parametrize("tensor", ["fc.weight", "markov_head.markov_w2.weight", "confidence_head.proj.bias"])
def test_an_export_that_computes_something_else_is_refused(
    world: TinyWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tensor: str
) -> None:
    """Names, shapes and counts all fit; only the values of one tensor are not the trained ones."""
    real = adapter.save_draft

    def save(model: Any, folder: Path) -> None:
        real(model, folder)
        stored = load_file(folder / "model.safetensors")
        save_file({**stored, tensor: stored[tensor] + 0.01}, folder / "model.safetensors")

    monkeypatch.setattr(adapter, "save_draft", save)
    with pytest.raises(JobError, match="away from those of the trained draft"):
        exported(world, tmp_path / "draft")
    assert not (tmp_path / "draft").exists()


def test_frozen_weights_are_stored_only_where_the_engine_needs_them(world: TinyWorld, tmp_path: Path) -> None:
    exported(world, tmp_path / "whole", vocab_size=None)
    names = load_file(tmp_path / "whole" / "model.safetensors").keys()
    assert names == expected_tensors(read_shape(tmp_path / "whole")).keys()
    assert not names & {"embed_tokens.weight", "lm_head.weight", "verifier_norm.weight", "d2t"}


def test_target_with_a_head_of_its_own(world: TinyWorld, tmp_path: Path) -> None:
    """Untied: the draft's head is the target's head, not its embedding."""
    from transformers import AutoModelForCausalLM

    target = tmp_path / "target"
    target.mkdir()
    for path in world.target.iterdir():
        if path.suffix != ".safetensors":
            (target / path.name).write_bytes(path.read_bytes())
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    (target / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    model = AutoModelForCausalLM.from_pretrained(world.target)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    weights["lm_head.weight"] = torch.randn(
        weights["lm_head.weight"].shape, generator=torch.Generator().manual_seed(9)
    )
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    untied = TinyWorld(target, world.log)
    for size in (60, None):
        draft = exported(untied, tmp_path / f"draft-{size}", vocab_size=size)
        chosen = weights["lm_head.weight"] if size is None else weights["lm_head.weight"][draft.t2d]
        assert torch.equal(draft.lm_head.weight, chosen)
        assert torch.equal(draft.verifier_lm_head.weight, chosen)
        assert torch.equal(draft.embed_tokens.weight, weights["model.embed_tokens.weight"])


def test_full_attention_layers_must_exist() -> None:
    with pytest.raises(ValueError, match="names \\[2\\], but num_layers is 2"):
        Draft(sliding_window=8, full_attention_layers=(0, 2))
    with pytest.raises(ValueError, match="means nothing without sliding_window"):
        Draft(full_attention_layers=(0,))
