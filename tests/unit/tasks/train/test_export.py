"""The exported folder: what it holds, what it must not hold, and that damage is noticed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tasks.errors import JobError
from tasks.train import adapter
from tasks.train.export import CONFIG_FIELDS, check_export, expected_tensors, read_shape
from tasks.train.models import DraftCheckpoint
from tasks.train.run import train_draft
from tests.unit.tasks.train.conftest import AUX_LAYERS, HIDDEN, VOCAB, TinyWorld


@pytest.fixture
def exported(world: TinyWorld, tmp_path: Path, quiet: Any, never: Any) -> tuple[Path, DraftCheckpoint]:
    result = train_draft(world.settings(tmp_path, max_steps=2), quiet, never)
    return tmp_path / result.path, result


def test_folder_holds_configuration_and_weights_only(exported: tuple[Path, DraftCheckpoint]) -> None:
    folder, result = exported
    names = {path.name for path in folder.iterdir()}
    assert names == {"config.json", "model.safetensors"} == set(result.files)
    text = (folder / "config.json").read_text(encoding="utf-8")
    assert "/tmp" not in text and "auto_map" not in text


def test_configuration_says_what_vllm_reads(exported: tuple[Path, DraftCheckpoint]) -> None:
    config = json.loads((exported[0] / "config.json").read_text(encoding="utf-8"))
    assert config["speculators_model_type"] == "dspark"
    assert config["sample_from_anchor"] is True
    assert config["aux_hidden_state_layer_ids"] == list(AUX_LAYERS)
    assert config["speculators_config"]["verifier"]["name_or_path"] == "tiny"
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 4
    assert config["mask_token_id"] == VOCAB - 2
    assert config["transformer_layer_config"]["hidden_size"] == HIDDEN
    assert config["transformer_layer_config"]["rope_parameters"]["rope_theta"] == 10000.0


def test_tensors_and_counts(exported: tuple[Path, DraftCheckpoint], world: TinyWorld) -> None:
    folder, result = exported
    tensors = load_file(folder / "model.safetensors")
    shape = read_shape(folder)
    assert {name: tuple(value.shape) for name, value in tensors.items()} == expected_tensors(shape)
    stored = sum(value.numel() for name, value in tensors.items() if name not in ("d2t", "t2d"))
    assert result.trained_parameters == stored - tensors["lm_head.weight"].numel()
    assert result.parameters == stored + VOCAB * HIDDEN
    target = load_file(world.target / "model.safetensors")["model.embed_tokens.weight"]
    ids = tensors["d2t"] + torch.arange(shape.draft_vocab_size)
    assert torch.equal(tensors["lm_head.weight"], target[ids])
    assert torch.equal(tensors["t2d"].nonzero().squeeze(1), ids)


def test_upstream_loads_the_export(exported: tuple[Path, DraftCheckpoint], world: TinyWorld) -> None:
    from speculators.models.dspark.config import DSparkSpeculatorConfig

    config = DSparkSpeculatorConfig.from_pretrained(exported[0])
    assert (config.block_size, config.markov_rank, config.sample_from_anchor) == (4, 8, True)
    assert config.speculators_config.verifier.architectures == ["LlamaForCausalLM"]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda t: t.pop("fc.weight"), "fc.weight is None"),
        (lambda t: t.update({"norm.weight": t["norm.weight"] * float("nan")}), "norm.weight holds values"),
        (lambda t: t.update({"extra": torch.zeros(1)}), r"extra is \(1,\)"),
        (lambda t: t.update({"norm.weight": torch.zeros(3)}), r"norm.weight is \(3,\)"),
    ],
)
def test_damage_is_named(exported: tuple[Path, DraftCheckpoint], damage: Any, said: str) -> None:
    folder, _ = exported
    shape = read_shape(folder)
    tensors = load_file(folder / "model.safetensors")
    damage(tensors)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(JobError, match=said):
        check_export(folder, shape)


def test_the_target_is_named_with_its_revision(
    world: TinyWorld, tmp_path: Path, quiet: Any, never: Any
) -> None:
    """What the profile says, not where the weights lie; upstream still reads the configuration."""
    from speculators.models.dspark.config import DSparkSpeculatorConfig

    settings = world.settings(tmp_path, max_steps=0).model_copy(update={"target_revision": "0123abc"})
    train_draft(settings, quiet, never)
    config = json.loads((tmp_path / "draft" / "config.json").read_text(encoding="utf-8"))
    verifier = config["speculators_config"]["verifier"]
    assert (verifier["name_or_path"], verifier["revision"]) == ("tiny", "0123abc")
    assert DSparkSpeculatorConfig.from_pretrained(tmp_path / "draft").block_size == 4


def test_every_field_that_engines_read_is_written(exported: tuple[Path, DraftCheckpoint]) -> None:
    config = json.loads((exported[0] / "config.json").read_text(encoding="utf-8"))
    assert set(CONFIG_FIELDS) <= config.keys()
    layer = config["transformer_layer_config"]
    assert {
        "model_type", "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads",
        "num_key_value_heads", "head_dim", "layer_types", "sliding_window", "use_sliding_window",
        "rope_parameters", "rms_norm_eps", "vocab_size", "max_position_embeddings", "hidden_act",
        "attention_bias",
    } <= layer.keys()  # fmt: skip


def test_a_configuration_without_a_field_is_refused(
    world: TinyWorld, tmp_path: Path, quiet: Any, never: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = adapter.save_draft

    def save(model: Any, folder: Path) -> None:
        real(model, folder)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        del config["sample_from_anchor"]
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")

    monkeypatch.setattr(adapter, "save_draft", save)
    with pytest.raises(JobError, match="does not say sample_from_anchor"):
        train_draft(world.settings(tmp_path, max_steps=0), quiet, never)
