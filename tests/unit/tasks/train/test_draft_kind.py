"""Drafts with latent attention are known by their configuration, and not trained on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from profiles.load import load_profile
from tasks.errors import UsageError
from tasks.evaluate.arm_plan import DraftFolder, plan_arms
from tasks.evaluate.draft_source import find_draft
from tasks.train.draft_kind import latent_attention
from tasks.train.earlier import check_initial

# As published for Kimi K3 in vLLM's own format, shortened to what tells its kind.
MLA: dict[str, Any] = {
    "architectures": ["K3DSparkModel"],
    "model_type": "k3_dspark",
    "hidden_size": 7168,
    "num_hidden_layers": 5,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "target_layer_ids": [7, 31, 47, 63, 87],
    "mask_token_id": 163837,
}
GQA: dict[str, Any] = {
    "architectures": ["DSparkDraftModel"],
    "speculators_model_type": "dspark",
    "sample_from_anchor": True,
    "transformer_layer_config": {"model_type": "qwen3", "num_attention_heads": 96, "num_key_value_heads": 16},
}


def folder_of(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (MLA, "kv_lora_rank 512"),
        ({"architectures": ["K3DSparkModel"]}, "K3DSparkModel"),
        ({"model_type": "k3_dspark"}, "k3_dspark"),
        ({**GQA, "transformer_layer_config": {"kv_lora_rank": 256}}, "kv_lora_rank 256"),
    ],
)
def test_each_way_to_say_it_is_known(config: dict[str, Any], words: str) -> None:
    assert words in latent_attention(config)


def test_ordinary_drafts_are_not_taken_for_one() -> None:
    assert latent_attention(GQA) == latent_attention({}) == ""
    assert latent_attention({"architectures": None, "transformer_layer_config": None}) == ""


def test_training_from_one_is_refused_with_the_reason(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "inferact", MLA)
    profile = load_profile("gb300-kimi-k3", {"train": {"init_from": str(folder)}}).profile
    with pytest.raises(UsageError, match=r"latent attention \(kv_lora_rank 512\).*no place") as caught:
        check_initial(profile, tmp_path, None)
    assert "evaluate.live.own_arms" in caught.value.hint


def test_replaying_one_is_refused_and_the_arm_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be replayed") as caught:
        find_draft(str(folder_of(tmp_path / "inferact", MLA)))
    assert "own_arms" in caught.value.hint


def arm_of(tmp_path: Path, **config: Any) -> Any:
    values = {"evaluate": {"live": {"own_arms": {"inferact": {"speculative_config": config}}}}}
    profile = load_profile("gb300-kimi-k3", values).profile
    arms = plan_arms(profile, tmp_path, DraftFolder(Path("/d")), None, "none yet")
    return next(arm for arm in arms if arm.name == "inferact")


def test_the_other_draft_of_kimi_k3_is_an_arm_once_its_revision_is_pinned(tmp_path: Path) -> None:
    """The target's code may run there, so an unpinned repository could bring any code."""
    assert "pin its revision" in arm_of(tmp_path).unavailable
    arm = arm_of(tmp_path, revision="3" * 40)
    assert arm.unavailable == ""
    config = arm.speculation.config
    assert (config["num_speculative_tokens"], config["attention_backend"]) == (7, "FLASHINFER_MLA")
    assert arm.speculation.runner == "v2"


def test_a_folder_serves_as_an_arm_unless_it_brings_code(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "inferact", MLA)
    assert arm_of(tmp_path, model=str(folder)).unavailable == ""
    (folder / "config.py").write_text("raise SystemExit\n")
    assert "brings code (config.py)" in arm_of(tmp_path, model=str(folder)).unavailable
    assert "no draft folder" in arm_of(tmp_path, model="/nowhere/draft").unavailable
