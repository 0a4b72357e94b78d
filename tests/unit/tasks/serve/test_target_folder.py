"""Targets as users bring them: tiny folders with real safetensors headers, no torch."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from profiles.schema import Profile
from tasks.errors import UsageError
from tasks.serve import target_folder
from tasks.serve.target_folder import check_target, model_digest, read_target_config, resolve_target

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 16,
    "vocab_size": 10,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": True,
}
EMBEDDING = ("model.embed_tokens.weight", "BF16", (10, 8))
HEAD = ("lm_head.weight", "BF16", (10, 8))
NORM = ("model.norm.weight", "BF16", (8,))
LAYER = ("model.layers.0.mlp.up_proj.weight", "BF16", (16, 8))
BYTES = {"BF16": 2, "I32": 4}


def write_weights(path: Path, tensors: list[tuple[str, str, tuple[int, ...]]]) -> None:
    header, offset = {}, 0
    for name, dtype, shape in tensors:
        size = BYTES[dtype]
        for dimension in shape:
            size *= dimension
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(offset))


def make_target(
    folder: Path,
    config: dict[str, Any] | None = None,
    tensors: tuple[tuple[str, str, tuple[int, ...]], ...] = (EMBEDDING, NORM, LAYER),
) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **(config or {})}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    write_weights(folder / "model.safetensors", list(tensors))
    return folder


def profile(folder: Path, layers: tuple[int, ...] = (1, 3), length: int = 64) -> Profile:
    return Profile.model_validate(
        {
            "name": "tiny",
            "target": {"model": str(folder), "aux_layer_ids": layers, "max_model_len": length},
            "stream": {"max_new_tokens": 8},
        }
    )


@pytest.fixture(autouse=True)
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_one_file_with_tied_weights_is_accepted(tmp_path: Path) -> None:
    folder = make_target(tmp_path / "t")
    config = check_target(profile(folder), folder)
    assert (config.hidden_size, config.num_hidden_layers, config.head_dim) == (8, 4, 4)
    assert config.eos_token_ids == (2,)


def test_generation_config_has_the_last_word_on_eos(tmp_path: Path) -> None:
    folder = make_target(tmp_path / "t")
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 7]}')
    assert read_target_config(folder).eos_token_ids == (2, 7)


def test_shards_and_their_index_are_accepted(tmp_path: Path) -> None:
    folder = make_target(tmp_path / "t", {"tie_word_embeddings": False})
    (folder / "model.safetensors").unlink()
    write_weights(folder / "a.safetensors", [EMBEDDING, LAYER])
    write_weights(folder / "b.safetensors", [NORM, HEAD])
    index = {EMBEDDING[0]: "a.safetensors", NORM[0]: "b.safetensors", HEAD[0]: "b.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    check_target(profile(folder), folder)
    (folder / "b.safetensors").unlink()
    with pytest.raises(UsageError, match=r"b\.safetensors"):
        check_target(profile(folder), folder)


def nested(text: dict[str, Any], **top: Any) -> dict[str, Any]:
    return {**dict.fromkeys(CONFIG), "architectures": ["LlavaForConditionalGeneration"], **top} | {
        "text_config": text
    }


def test_sizes_inside_the_text_section_are_found(tmp_path: Path) -> None:
    folder = make_target(tmp_path / "t", nested(CONFIG))
    config = check_target(profile(folder), folder)
    assert config.architecture == "LlavaForConditionalGeneration"
    assert (config.hidden_size, config.num_attention_heads, config.vocab_size) == (8, 2, 10)


def test_layer_ids_are_checked_against_the_text_section(tmp_path: Path) -> None:
    folder = make_target(tmp_path / "t", nested(CONFIG))
    with pytest.raises(UsageError, match=r"no layer 9"):
        check_target(profile(folder, (1, 9)), folder)


def test_wrapper_and_text_section_that_disagree_are_refused_with_both_values(tmp_path: Path) -> None:
    folder = make_target(tmp_path / "t", nested(CONFIG, num_hidden_layers=27))
    with pytest.raises(UsageError, match="num_hidden_layers is 27 at the top and 4 in text_config"):
        read_target_config(folder)


@pytest.mark.parametrize("layers", [(1, 3, 4), (0, 2), (1, 31)])
def test_layers_that_the_target_does_not_have_are_named(tmp_path: Path, layers: tuple[int, ...]) -> None:
    folder = make_target(tmp_path / "t")
    with pytest.raises(UsageError) as caught:
        check_target(profile(folder, layers), folder)
    assert caught.value.where == "target.aux_layer_ids"
    assert "1 to 3" in caught.value.hint
    assert str(list(layers)) in caught.value.what


@pytest.mark.parametrize(
    ("config", "tensors", "message"),
    [
        ({}, (("transformer.wte.weight", "BF16", (10, 8)), NORM), "no tensor embed_tokens.weight"),
        ({"tie_word_embeddings": False}, (EMBEDDING, NORM), "no tensor lm_head.weight"),
        (
            {"tie_word_embeddings": False},
            (EMBEDDING, NORM, ("lm_head.weight_packed", "I32", (10, 1))),
            "lm_head.weight_packed cannot take its place",
        ),
        (
            {"tie_word_embeddings": False},
            (EMBEDDING, NORM, ("lm_head.weight", "I32", (10, 1))),
            "lm_head.weight is I32",
        ),
        ({}, (("model.embed_tokens.weight", "BF16", (12, 8)), NORM), r"\[12, 8\]"),
        ({}, (EMBEDDING, ("model.layers.0.norm.weight", "BF16", (8,))), "no tensor model.norm.weight"),
        (
            {"architectures": ["NeverSeenForCausalLM"]},
            (EMBEDDING, NORM),
            "unsupported architecture 'NeverSeen",
        ),
        ({"architectures": None}, (EMBEDDING, NORM), "unsupported architecture ''"),
    ],
)
def test_weights_that_the_draft_cannot_copy_from(
    tmp_path: Path, config: dict[str, Any], tensors: Any, message: str
) -> None:
    folder = make_target(tmp_path / "t", config, tensors)
    with pytest.raises(UsageError, match=message):
        check_target(profile(folder), folder)


def test_two_possible_embeddings_are_not_guessed_between(tmp_path: Path) -> None:
    twins = [(f"{part}.embed_tokens.weight", "BF16", (10, 8)) for part in ("vision", "language")]
    folder = make_target(tmp_path / "t", tensors=(*twins, NORM))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"several tensors could be embed_tokens\.weight"):
        check_target(profile(folder), folder)


def test_folder_without_weights_says_what_it_has_instead(tmp_path: Path) -> None:
    folder = make_target(tmp_path / "t")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UsageError, match=r"no safetensors weights \(only pytorch_model.bin\)"):
        check_target(profile(folder), folder)


def test_cut_off_weights_are_refused(tmp_path: Path) -> None:
    folder = make_target(tmp_path / "t")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(UsageError, match="not a complete safetensors file"):
        check_target(profile(folder), folder)


def test_tokenizer_without_chat_template(tmp_path: Path) -> None:
    folder = make_target(tmp_path / "t")
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(UsageError, match="no chat template"):
        check_target(profile(folder), folder)
    (folder / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    check_target(profile(folder), folder)


def test_no_tokenizer_and_no_config(tmp_path: Path) -> None:
    folder = make_target(tmp_path / "t")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UsageError, match="no tokenizer"):
        check_target(profile(folder), folder)
    (folder / "config.json").unlink()
    with pytest.raises(UsageError, match=r"no config\.json"):
        check_target(profile(folder), folder)


def test_length_beyond_the_target(tmp_path: Path) -> None:
    folder = make_target(tmp_path / "t")
    with pytest.raises(UsageError, match="reaches 64 tokens"):
        check_target(profile(folder, length=65), folder)


def test_missing_target_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_target(profile(tmp_path / "nowhere"))
    assert caught.value.where == "target.model"


def test_digest_follows_the_weights_and_is_not_computed_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_target(tmp_path / "t")
    first = model_digest(folder)
    hashed: list[Path] = []
    real = target_folder.model_digest.__globals__["sha256_file"]
    monkeypatch.setitem(
        target_folder.model_digest.__globals__, "sha256_file", lambda path: hashed.append(path) or real(path)
    )
    assert model_digest(folder) == first
    assert "model.safetensors" not in [path.name for path in hashed]
    write_weights(folder / "model.safetensors", [EMBEDDING, NORM])
    assert model_digest(folder) != first


def tapped(folder: Path, tap_point: str | None, mask: int | None = None) -> Profile:
    values = profile(folder).model_dump(mode="json")
    values["target"]["tap_point"] = tap_point
    values["serve"]["engine"]["runner"] = "v1"
    values["evaluate"]["live"]["engine"] = {}
    values["train"]["draft"]["mask_token_id"] = mask
    return Profile.model_validate(values)


def test_attention_residuals_need_a_tap_point_and_nothing_else_has_one(tmp_path: Path) -> None:
    plain = make_target(tmp_path / "plain")
    residual = make_target(tmp_path / "residual", {"attn_res_block_size": 2})
    check_target(tapped(plain, None), plain)
    check_target(tapped(residual, "prefix_only"), residual)
    with pytest.raises(UsageError, match="does not say at which") as info:
        check_target(tapped(residual, None), residual)
    assert info.value.where == "target.tap_point"
    with pytest.raises(UsageError, match="has no Attention Residuals"):
        check_target(tapped(plain, "attn_res_stream"), plain)


def test_a_mask_token_must_be_one_of_the_target_s(tmp_path: Path) -> None:
    folder = make_target(tmp_path / "t")
    check_target(tapped(folder, None, mask=9), folder)
    with pytest.raises(UsageError, match="mask_token_id is 10, but the target has 10 tokens"):
        check_target(tapped(folder, None, mask=10), folder)
