"""The plan's parameter counts against the very models, built without memory on the `meta` device."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from profiles.load import merge
from profiles.schema import Profile
from tasks.plan.numbers import plan_numbers, shape_of_draft
from tasks.plan.target import known_target
from tasks.train import adapter
from tasks.train.size import draft_parameters
from tasks.train.vocabulary import DraftVocabulary

TARGET = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 12,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
    "rope_theta": 10000.0,
}  # fmt: skip


def random_profile(seed: int, folder: Path) -> Profile:
    """A target's config in `folder` and a profile with a draft for it, of random sizes."""
    pick = random.Random(seed)
    kv = pick.choice([1, 2, 4, 8])
    config: dict[str, Any] = {
        **TARGET,
        "hidden_size": pick.choice([64, 576, 1024, 2880, 4096]),
        "vocab_size": pick.randrange(2_000, 160_000),
        "intermediate_size": pick.randrange(128, 20_000),
        "num_attention_heads": kv * pick.choice([1, 3, 4, 6]),
        "num_key_value_heads": kv,
        "head_dim": pick.choice([16, 64, 128]),
    }
    (folder / "config.json").write_text(json.dumps(config))
    draft = {
        "num_layers": pick.randrange(1, 7),
        "block_size": pick.randrange(2, 12),
        "intermediate_size": pick.choice([None, pick.randrange(64, 16_000)]),
        "markov_rank": pick.choice([0, 1, 64, 256]),
        "markov_head_type": pick.choice(["vanilla", "gated", "rnn"]),
        "confidence_head": pick.random() < 0.8,
        "confidence_with_markov": pick.random() < 0.8,
        "vocab_size": pick.choice([None, pick.randrange(1_000, config["vocab_size"])]),
        "sliding_window": pick.choice([None, 2048]),
    }
    layers = sorted(pick.sample(range(1, 12), pick.randrange(1, 6)))
    return profile_of(folder, layers, draft)


def profile_of(folder: Path, layers: list[int], draft: dict[str, Any], **more: Any) -> Profile:
    values = {
        "name": "sizes",
        "target": {"model": str(folder), "aux_layer_ids": layers},
        "train": {"draft": draft},
    }
    return Profile.model_validate(merge(values, more))


def built_on_meta(profile: Profile, folder: Path) -> torch.nn.Module:
    """The draft as training builds it, but for the weights that it would read from the target."""

    class Unloaded(adapter._draft_class()):  # type: ignore[misc]
        def load_verifier_weights(self) -> None:
            pass

        def load_vocab_mappings(self, t2d: Any, d2t: Any) -> None:
            pass

    draft = profile.train.draft
    config = adapter.decoder_config(folder, draft)
    size = min(draft.vocab_size or config.vocab_size, config.vocab_size)
    vocabulary = DraftVocabulary(None, None, size)
    options = adapter.training_options(folder, draft, profile.target.aux_layer_ids, vocabulary, 0)
    with torch.device("meta"):
        model: torch.nn.Module = Unloaded.from_training_args(config, t2d=None, d2t=None, **options)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in adapter.FROZEN)
    return model


def check(profile: Profile, folder: Path) -> int:
    """Compare every part of the plan's count with the model's own; returns the total."""
    shape = shape_of_draft(profile, known_target(profile).config)
    model: Any = built_on_meta(profile, folder)
    assert all(parameter.is_meta for parameter in model.parameters())
    counts = draft_parameters(shape)
    assert draft_parameters(adapter.draft_shape(model)) == counts
    assert counts.trained == sum(value.numel() for value in adapter.trained_state(model).values())
    assert counts.embedding == model.embed_tokens.weight.numel()
    assert counts.lm_head == model.lm_head.weight.numel() == model.verifier_lm_head.weight.numel()
    numbers = plan_numbers(profile, known_target(profile).config)
    assert (numbers.draft_parameters, numbers.trained_parameters) == (counts.total, counts.trained)
    return counts.total


@pytest.mark.parametrize("seed", range(3))
def test_counts_of_random_drafts_are_those_of_the_models(seed: int, tmp_path: Path) -> None:
    check(random_profile(seed, tmp_path), tmp_path)


@pytest.mark.verify("plan")
def test_counts_of_fifty_random_drafts_are_those_of_the_models(tmp_path: Path, record_property: Any) -> None:
    """Parameters of 50 random drafts, by formula and of the models on the meta device"""
    for seed in range(100, 150):
        folder = tmp_path / str(seed)
        folder.mkdir()
        check(random_profile(seed, folder), folder)
    record_property("drafts", 50)


def test_the_published_draft_of_kimi_k3_is_that_large(tmp_path: Path) -> None:
    config = {
        **TARGET, "hidden_size": 7168, "vocab_size": 163840, "intermediate_size": 33792, "head_dim": 64,
        "num_attention_heads": 96, "num_key_value_heads": 16, "num_hidden_layers": 93,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    draft = {"num_layers": 5, "intermediate_size": 14336, "markov_rank": 256, "sliding_window": 2048}
    profile = profile_of(tmp_path, [24, 48, 72, 88, 92], draft)
    assert check(profile, tmp_path) == 4_744_900_481
