"""The adapter against upstream itself: same options, same loss, same metrics."""

from __future__ import annotations

import inspect
import json
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

from profiles.schema import Draft
from tasks.errors import StageInputError
from tasks.stream.log import HiddenStateLog
from tasks.train import adapter
from tasks.train.data import Batch, CaptureReader, choose_anchors, make_batch
from tasks.train.loss import LossWeights, MetricSums, outcome_sums
from tasks.train.vocabulary import answer_counts, choose_vocabulary
from tests.unit.tasks.train.conftest import AUX_LAYERS, HIDDEN, VOCAB, TinyWorld

WEIGHTS = LossWeights(0.1, 0.9, 1.0, 4.0)


def build(world: TinyWorld, **draft: Any) -> Any:
    shape = Draft.model_validate({"num_layers": 2, "block_size": 4, "markov_rank": 8} | draft)
    counts = answer_counts(HiddenStateLog(world.log).entries("train"))
    vocabulary = choose_vocabulary(counts, shape.vocab_size, VOCAB)
    return adapter.build_draft(world.target, shape, AUX_LAYERS, vocabulary, seed=0)


def batch_of(world: TinyWorld) -> Batch:
    reader = CaptureReader(HiddenStateLog(world.log), 3, HIDDEN, torch.float32, 0)
    return make_batch(reader, HiddenStateLog(world.log).entries("train")[:5])


def upstream_forward(
    model: Any, batch: Batch, anchors: torch.Tensor, monkeypatch: Any, loss: str = '{"ce": 0.1, "tv": 0.9}'
) -> Any:
    """Upstream's own forward with its sdpa attention on the same anchors."""
    from speculators.losses import resolve_loss_config
    from speculators.models.dflash import core

    chosen = (anchors, torch.ones(len(anchors), dtype=torch.bool))
    monkeypatch.setattr(core, "select_anchors", lambda *_: chosen)
    model.config.transformer_layer_config._attn_implementation = "sdpa"
    try:
        return model(
            hidden_states=batch.aux_states[None],
            input_ids=batch.token_ids[None],
            loss_mask=batch.loss_mask[None],
            verifier_last_hidden_states=batch.last_states[None],
            document_ids=batch.document_ids[None],
            position_ids=batch.position_ids[None],
            loss_config=resolve_loss_config(loss, "eager"),
            tv_loss_fn=resolve_loss_config("tv", "eager")["tv"][0],
            gamma=4.0,
            max_anchors=len(anchors),
            confidence_head_alpha=1.0,
            per_position_loss_weight="fixed-exp-decay",
        )
    finally:
        model.config.transformer_layer_config._attn_implementation = "packed_documents"


def inner_anchors(batch: Batch, block: int) -> torch.Tensor:
    """Anchors whose block ends inside the batch, which is all that upstream allows."""
    anchors = choose_anchors(batch, 18, torch.Generator().manual_seed(2))
    return anchors[anchors < batch.tokens - block]


@pytest.mark.parametrize(
    "draft",
    [
        {"vocab_size": 60},
        {"vocab_size": None},
        {"vocab_size": 60, "sample_from_anchor": False},
        {"vocab_size": 60, "markov_head_type": "gated"},
        {"vocab_size": 60, "markov_head_type": "rnn"},
        {"vocab_size": 60, "markov_rank": 0, "confidence_head": False},
        {"vocab_size": 60, "sliding_window": 5},
    ],
)
def test_loss_gradient_and_metrics_equal_upstream(
    world: TinyWorld, draft: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(world, **draft)
    with torch.no_grad():  # the Markov head starts near zero, which would hide a mistake
        for name, value in adapter.trained_state(model).items():
            if "markov" in name or "confidence" in name:
                value.normal_(std=0.3, generator=torch.Generator().manual_seed(len(name)))
    batch = batch_of(world)
    anchors = inner_anchors(batch, 4)
    _, wanted, wanted_metrics = upstream_forward(model, batch, anchors, monkeypatch)
    wanted.backward()
    gradients = {name: value.grad.clone() for name, value in adapter.trained_state(model).items()}
    model.zero_grad()
    outcome = adapter.run_blocks(model, batch, anchors, WEIGHTS)
    outcome.loss.backward()
    torch.testing.assert_close(outcome.loss, wanted, rtol=2e-5, atol=1e-6)
    for name, value in adapter.trained_state(model).items():
        torch.testing.assert_close(value.grad, gradients[name], rtol=1e-3, atol=2e-6, msg=name)
    sums = MetricSums()
    sums.add(outcome_sums(outcome))
    means = sums.means()
    for name, value in means.items():
        total = float(wanted_metrics[f"{name}_total"])
        assert value == pytest.approx(float(wanted_metrics[f"{name}_sum"]) / total, rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize(
    ("spec", "weights"),
    [
        ("kl_div", LossWeights(0.0, 0.0, 1.0, 4.0, kl=1.0)),
        ('{"ce": 0.2, "tv": 0.3, "kl_div": 0.5}', LossWeights(0.2, 0.3, 1.0, 4.0, kl=0.5)),
    ],
)
def test_divergence_equals_upstreams(
    world: TinyWorld, spec: str, weights: LossWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(world, vocab_size=60)
    batch = batch_of(world)
    anchors = inner_anchors(batch, 4)
    _, wanted, metrics = upstream_forward(model, batch, anchors, monkeypatch, spec)
    wanted.backward()
    gradients = {name: value.grad.clone() for name, value in adapter.trained_state(model).items()}
    model.zero_grad()
    outcome = adapter.run_blocks(model, batch, anchors, weights)
    outcome.loss.backward()
    torch.testing.assert_close(outcome.loss, wanted, rtol=2e-5, atol=1e-6)
    for name, value in adapter.trained_state(model).items():
        torch.testing.assert_close(value.grad, gradients[name], rtol=1e-3, atol=2e-6, msg=name)
    term = float(outcome.terms["kl_div_loss"])
    # Upstream names the terms only where there are several.
    known = float(metrics["kl_div_loss_sum"]) if "kl_div_loss_sum" in metrics else None
    if known is None:
        known = float(outcome.loss.detach() - outcome.terms["confidence_loss"])
    assert term == pytest.approx(known, rel=1e-4)


def test_a_block_never_sees_or_learns_from_another_document(world: TinyWorld) -> None:
    """Changing one document leaves the other documents' blocks as they were."""
    model = build(world, vocab_size=60).eval()
    batch = batch_of(world)
    anchors = batch.anchor_positions()
    before = adapter.run_blocks(model, batch, anchors, WEIGHTS)
    first = batch.document_ids == 0
    batch.aux_states[first] += 1.0
    batch.last_states[first] -= 0.5
    after = adapter.run_blocks(model, batch, anchors, WEIGHTS)
    others = batch.document_ids[anchors] != 0
    assert torch.equal(before.accept_rate[others], after.accept_rate[others])
    assert not torch.equal(before.accept_rate[~others], after.accept_rate[~others])
    ends = batch.document_ids[anchors] != batch.document_ids[(anchors + 1).clamp(max=batch.tokens - 1)]
    assert not bool(before.valid[ends][:, 1:].any())


def test_target_weights_are_frozen_and_equal_the_target(world: TinyWorld) -> None:
    from safetensors.torch import load_file

    model = build(world, vocab_size=60)
    target = load_file(world.target / "model.safetensors")
    embedding = target["model.embed_tokens.weight"]
    assert torch.equal(model.embed_tokens.weight, embedding)
    assert torch.equal(model.lm_head.weight, embedding[model.t2d])
    assert torch.equal(model.verifier_norm.weight, target["model.norm.weight"])
    assert not set(adapter.FROZEN) & adapter.trained_state(model).keys()
    frozen = {name for name, value in model.named_parameters() if not value.requires_grad}
    assert frozen == set(adapter.FROZEN)


def test_same_seed_gives_the_same_draft(world: TinyWorld) -> None:
    first, second = build(world, vocab_size=60), build(world, vocab_size=60)
    for name, value in adapter.trained_state(first).items():
        assert torch.equal(value, adapter.trained_state(second)[name]), name


def test_decoder_takes_rotary_settings_from_the_target(world: TinyWorld) -> None:
    config = adapter.decoder_config(world.target, Draft())
    target = adapter.target_text_config(world.target)
    assert config.rope_parameters["rope_theta"] == target.rope_parameters["rope_theta"]
    assert config.layer_types == ["full_attention"] * 2
    sliding = adapter.decoder_config(world.target, Draft(sliding_window=8))
    assert sliding.layer_types == ["sliding_attention"] * 2
    assert adapter.mask_token_id(world.target, VOCAB) == VOCAB - 2


def test_what_the_draft_says_of_its_shape_goes_before_the_target_s(world: TinyWorld) -> None:
    draft = Draft(
        num_layers=1, num_attention_heads=6, num_key_value_heads=3, head_dim=8, rope_theta=10000.0,
        rms_norm_eps=1e-4, mask_token_id=7, markov_rank=8, confidence_head=False,
    )  # fmt: skip
    config = adapter.decoder_config(world.target, draft)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (6, 3, 8)
    assert config.rms_norm_eps == 1e-4
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 10000.0}
    vocabulary = choose_vocabulary(answer_counts([]), None, VOCAB)
    model: Any = adapter.build_draft(world.target, draft, (1, 3), vocabulary, 0)
    assert model.config.mask_token_id == 7
    assert model.layers[0].self_attn.q_proj.weight.shape == (48, config.hidden_size)
    assert model.layers[0].self_attn.k_proj.weight.shape == (24, config.hidden_size)
    with pytest.raises(StageInputError, match="mask token 512 is none of the target's 512 tokens"):
        adapter.build_draft(world.target, Draft(mask_token_id=VOCAB), (1, 3), vocabulary, 0)


def test_a_target_that_needs_its_own_code_gets_it_only_where_it_may_run(
    world: TinyWorld, tmp_path: Path
) -> None:
    folder = tmp_path / "own"
    shutil.copytree(world.target, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "kept_secret", "auto_map": {"AutoConfig": "configuration_own.OwnConfig"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "configuration_own.py").write_text(
        "from transformers import LlamaConfig\n\n\nclass OwnConfig(LlamaConfig):\n"
        "    model_type = 'kept_secret'\n"
    )
    with pytest.raises(ValueError, match=r"custom code|trust_remote_code"):
        adapter.target_text_config(folder)
    assert adapter.target_text_config(folder, own_code=True).hidden_size == config["hidden_size"]
    assert adapter.decoder_config(folder, Draft(), own_code=True).hidden_size == config["hidden_size"]


def test_upstream_options_are_the_ones_that_are_written_out() -> None:
    """Fails when upstream adds, renames or drops an option, or another version is installed."""
    from speculators.models.dspark import DSparkDraftModel
    from speculators.models.dspark.config import DSparkSpeculatorConfig

    assert version("speculators") == adapter.SPECULATORS
    fields = set(DSparkSpeculatorConfig.model_fields) - {"transformers_version"}
    known = {
        "speculators_model_type", "speculators_version", "speculators_config", "architectures",
        "transformer_layer_config", "draft_vocab_size", "block_size", "target_hidden_size",
        "aux_hidden_state_layer_ids", "mask_token_id", "sliding_window_non_causal", "sample_from_anchor",
        "markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov",
    }  # fmt: skip
    assert known <= fields
    assert {name for name in fields if name in DSparkSpeculatorConfig.__annotations__} <= known
    forward = inspect.signature(inspect.unwrap(DSparkDraftModel.forward)).parameters
    assert {name: forward[name].default for name in ("gamma", "confidence_head_alpha", "dpace_alpha")} == {
        "gamma": 4.0, "confidence_head_alpha": 1.0, "dpace_alpha": 0.5,
    }  # fmt: skip
    options = adapter.training_options(
        Path("target"), Draft(), (1, 2), choose_vocabulary(answer_counts([]), None, 8), 3
    )
    read = _options_read(DSparkDraftModel)
    assert read - {"draft_attn_impl"} <= options.keys()


def _options_read(model: Any) -> set[str]:
    """Names that `from_training_args` looks up in its keyword arguments."""
    import re

    text = inspect.getsource(model.from_training_args) + inspect.getsource(model._build_base_config_kwargs)
    return set(re.findall(r"""kwargs(?:\.get\(|\[)\s*["'](\w+)["']""", text))
