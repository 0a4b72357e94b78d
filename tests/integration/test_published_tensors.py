"""The tensors and counts that we require are those that speculators really writes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from tasks.publish.check_folder import CONFIG_KEYS, read_tensors, required_tensors
from tasks.publish.refusals.config import _tried
from tasks.train import round_trip
from tasks.train.size import DraftShape, draft_parameters

pytestmark = pytest.mark.integration


def saved(folder: Path, draft_vocab: int, kind: str, rank: int = 4) -> Path:
    """A small untrained draft, as upstream saves it."""
    from speculators import SpeculatorsConfig, VerifierConfig
    from speculators.models.dspark.config import DSparkSpeculatorConfig
    from speculators.models.dspark.core import DSparkDraftModel
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers.models.qwen3.configuration_qwen3 import Qwen3Config

    layers = Qwen3Config(
        vocab_size=128,
        hidden_size=32,
        num_hidden_layers=2,
        intermediate_size=48,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        tie_word_embeddings=False,
    )
    proposal = GreedyTokenProposalConfig(speculative_tokens=4)
    verifier = VerifierConfig(name_or_path="target", architectures=["LlamaForCausalLM"])
    config = DSparkSpeculatorConfig(
        transformer_layer_config=layers,
        draft_vocab_size=draft_vocab,
        block_size=4,
        markov_rank=rank,
        markov_head_type=kind,
        confidence_head_with_markov=rank > 0,
        aux_hidden_state_layer_ids=[1, 2, 3],
        mask_token_id=0,
        speculators_config=SpeculatorsConfig(
            algorithm="dspark",
            proposal_methods=[proposal],
            default_proposal_method="greedy",
            verifier=verifier,
        ),
    )
    DSparkDraftModel(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
@pytest.mark.parametrize("draft_vocab", [64, 128])
def test_required_tensors_and_counts_are_upstreams(tmp_path: Path, draft_vocab: int, kind: str) -> None:
    folder = saved(tmp_path / "draft", draft_vocab, kind)
    config = json.loads((folder / "config.json").read_text())
    tensors = read_tensors(folder / "model.safetensors")
    assert set(required_tensors(config)) == set(tensors)
    assert all(key in config for key in CONFIG_KEYS)
    trained = sum(
        math.prod(t["shape"]) for n, t in tensors.items() if n not in ("lm_head.weight", "t2d", "d2t")
    )
    shape = DraftShape(128, draft_vocab, 32, 3, 2, 4, 2, 8, 48, 4, kind)
    assert draft_parameters(shape).trained == trained


def test_without_a_markov_head(tmp_path: Path) -> None:
    folder = saved(tmp_path / "draft", 64, "vanilla", rank=0)
    config = json.loads((folder / "config.json").read_text())
    tensors = read_tensors(folder / "model.safetensors")
    assert set(required_tensors(config)) == set(tensors)
    shape = DraftShape(128, 64, 32, 3, 2, 4, 2, 8, 48, 0)
    assert draft_parameters(shape).confidence == tensors["confidence_head.proj.weight"]["shape"][1] + 1


def test_what_upstream_writes_survives_its_class_and_what_it_changes_is_named(tmp_path: Path) -> None:
    folder = saved(tmp_path / "draft", 64, "vanilla")
    assert round_trip.differences(folder) == []
    whole = json.loads((folder / "config.json").read_text())
    published = json.loads(json.dumps(whole))
    published.pop("auto_map", None)
    published["speculators_config"]["verifier"].update(name_or_path="acme/target", revision="abc")
    (folder / "config.json").write_text(json.dumps(published))
    assert round_trip.differences(folder) == []  # what publication changes is not compared
    assert round_trip.digest_of(folder) == round_trip.config_digest(whole)
    published["speculators_config"]["proposal_methods"][0]["house_option"] = 3
    del published["transformer_layer_config"]["rms_norm_eps"]
    (folder / "config.json").write_text(json.dumps(published))
    changed = round_trip.differences(folder)
    assert any(line.startswith("speculators_config.proposal_methods: ") for line in changed)
    assert any(line.startswith("transformer_layer_config.rms_norm_eps: ") for line in changed)
    material = SimpleNamespace(folder=folder)
    assert _tried(material) == changed  # type: ignore[arg-type]  # in a child: publication imports no torch
    published["markov_head_type"] = "quantum"
    (folder / "config.json").write_text(json.dumps(published))
    assert round_trip.differences(folder)[0].startswith("it cannot be read: ")
