"""A tiny target and a tiny exported draft, real formats, random weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.tasks.evaluate.replay_world import ReplayWorld, build_world

VOCAB = 64
HIDDEN = 16
AUX_LAYERS = (1, 2)
BLOCK = 4


def save_target(folder: Path, seed: int = 0) -> Path:
    """A Llama of two layers in Hugging Face format."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def save_draft(
    folder: Path, target: Path, pruned: bool = True, layers: dict[str, Any] | None = None, **options: Any
) -> Path:
    """An untrained draft whose weights are large enough to disagree with one another.

    Args:
        layers: Fields of its layers' configuration.
    """
    import torch
    from speculators.models.dspark import DSparkDraftModel
    from transformers import Qwen3Config

    torch.manual_seed(1)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        tie_word_embeddings=False,
        **(layers or {}),
    )
    ids = torch.arange(1, VOCAB, 2) if pruned else torch.arange(VOCAB)
    settings = {
        "verifier_name_or_path": str(target),
        "target_layer_ids": list(AUX_LAYERS),
        "draft_vocab_size": len(ids),
        "block_size": BLOCK,
        "mask_token_id": 0,
        "draft_attn_impl": "sdpa",
        "sample_from_anchor": True,
        "sliding_window_non_causal": False,
        "markov_rank": 8,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
        **options,
    }
    t2d = torch.zeros(VOCAB, dtype=torch.bool)
    t2d[ids] = True
    model = DSparkDraftModel.from_training_args(
        config,
        t2d=t2d if pruned else None,
        d2t=ids - torch.arange(len(ids)) if pruned else None,
        **settings,
    )
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "norm" not in name and "embed" not in name and "lm_head" not in name:
                value.normal_(std=0.5)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def target_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="session")
def draft_dir(tmp_path_factory: pytest.TempPathFactory, target_dir: Path) -> Path:
    return save_draft(tmp_path_factory.mktemp("draft") / "draft", target_dir)


@pytest.fixture(scope="session")
def make_draft(target_dir: Path) -> Callable[..., Path]:
    """Makes a draft with options of its own in a given folder."""

    def make(folder: Path, **options: Any) -> Path:
        return save_draft(folder, target_dir, **options)

    return make


@pytest.fixture(scope="session")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> ReplayWorld:
    """A trained draft with its target's answers."""
    return build_world(tmp_path_factory.mktemp("replayed"))
