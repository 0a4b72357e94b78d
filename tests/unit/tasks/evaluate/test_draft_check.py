"""Wrong drafts that their own files give away: refused with both values before anything is measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tasks.errors import StageInputError
from tasks.evaluate.draft_check import (
    Expected,
    TrainingRecord,
    check_config,
    record_beside,
    record_of,
    rope_settings,
)
from tasks.serve.target_config import read_target_config
from tasks.train.models import DraftCheckpoint

AUX_LAYERS = (1, 2)
RECORD = TrainingRecord(
    source="the train stage", sample_from_anchor=True, aux_layer_ids=AUX_LAYERS, rope_of_target=True
)


@pytest.fixture
def expected(target_dir: Path) -> Expected:
    target = read_target_config(target_dir)
    return Expected(target=target, names=("org/Target", target_dir.name), layer_ids=AUX_LAYERS, record=RECORD)


@pytest.fixture
def changed(draft_dir: Path, tmp_path: Path) -> Callable[..., Path]:
    """A draft's folder whose `config.json` has other values; None takes a field away."""

    def change(**fields: Any) -> Path:
        config = json.loads((draft_dir / "config.json").read_text())
        for path, value in fields.items():
            *parts, name = path.split("__")
            section = config
            for part in parts:
                section = section[int(part)] if part.isdigit() else section[part]
            section[name] = value
            if value is None:
                del section[name]
        (tmp_path / "config.json").write_text(json.dumps(config))
        return tmp_path

    return change


def test_a_draft_that_fits_passes(draft_dir: Path, expected: Expected) -> None:
    check_config(draft_dir, expected)
    check_config(draft_dir, replace(expected, record=None))


METHOD = "speculators_config__proposal_methods__0__speculative_tokens"
VERIFIER = "speculators_config__verifier"
LAYER = "transformer_layer_config"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"sample_from_anchor": None}, r"absent.*trained with true"),
        ({"sample_from_anchor": "yes"}, r"sample_from_anchor is 'yes'"),
        ({"sample_from_anchor": False, METHOD: 3}, r"is false, the train stage trained with true"),
        ({"aux_hidden_state_layer_ids": [0, 2]}, r"reads layers \[0, 2\], the captures hold \[1, 2\]"),
        ({f"{LAYER}__hidden_size": 32}, r"hidden size 32, this one 16"),
        ({f"{LAYER}__vocab_size": 65}, r"vocabulary of 65, this one of 64"),
        ({f"{VERIFIER}__architectures": ["KimiK3ForCausalLM"]}, r"a KimiK3ForCausalLM, this one a Llama"),
        ({f"{VERIFIER}__name_or_path": "other/Llama"}, r"called other/Llama, this one org/Target or"),
        ({f"{LAYER}__rope_parameters": {"rope_theta": 5.0}}, r"rotary settings are .*5\.0.*10000\.0"),
        ({"block_size": 1, "sample_from_anchor": False}, r"drafts nothing: a block of 1"),
        ({"block_size": 0}, r"drafts nothing: a block of 0"),
        ({METHOD: 0}, r"drafts 0 tokens, but a block of 4"),
        ({"speculators_model_type": "eagle3"}, r"'eagle3', expected 'dspark'"),
    ],
)
def test_what_does_not_fit_is_refused_with_both_values(
    fields: dict[str, Any], words: str, changed: Callable[..., Path], expected: Expected
) -> None:
    with pytest.raises(StageInputError, match=words) as caught:
        check_config(changed(**fields), expected)
    assert caught.value.hint and caught.value.where.endswith("config.json")


def test_a_flipped_anchor_contradicts_its_own_proposal_method(
    changed: Callable[..., Path], expected: Expected
) -> None:
    folder = changed(sample_from_anchor=False)
    with pytest.raises(StageInputError, match=r"drafts 4 tokens, but a block of 4 .* false has 3"):
        check_config(folder, replace(expected, record=None))


def test_all_faults_are_named_at_once(changed: Callable[..., Path], expected: Expected) -> None:
    folder = changed(aux_hidden_state_layer_ids=[0, 1], transformer_layer_config__vocab_size=3)
    with pytest.raises(
        StageInputError, match=r"layers \[0, 1\].*layers \[0, 1\], the train.*vocabulary of 3"
    ):
        check_config(folder, expected)


def test_revisions_are_compared_where_both_are_known(
    changed: Callable[..., Path], expected: Expected
) -> None:
    folder = changed(speculators_config__verifier__revision="aaa")
    check_config(folder, expected)
    with pytest.raises(StageInputError, match="revision aaa, this one of bbb"):
        check_config(folder, replace(expected, revision="bbb"))


def test_the_same_weights_need_no_matching_name(changed: Callable[..., Path], expected: Expected) -> None:
    folder = changed(speculators_config__verifier__name_or_path="elsewhere/renamed")
    same = RECORD.model_copy(update={"digest": "d1"})
    check_config(folder, replace(expected, record=same, digest="d1"))
    with pytest.raises(StageInputError, match="renamed"):
        check_config(folder, replace(expected, record=same, digest="d2"))


def test_foreign_rotary_settings_are_no_fault(changed: Callable[..., Path], expected: Expected) -> None:
    """Others train drafts with settings of their own; only a measurement can tell."""
    folder = changed(transformer_layer_config__rope_parameters={"rope_theta": 5.0})
    check_config(folder, replace(expected, record=None))


def test_a_folder_without_configuration_is_refused(tmp_path: Path, expected: Expected) -> None:
    with pytest.raises(StageInputError, match=r"config\.json cannot be read"):
        check_config(tmp_path, expected)


def test_both_ways_of_writing_rotary_settings_mean_the_same() -> None:
    new = {"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}
    assert rope_settings(new) == rope_settings({"rope_theta": 7.0, "rope_scaling": None})
    scaled = rope_settings({"rope_theta": 7.0, "rope_scaling": {"type": "yarn", "factor": 2.0}})
    assert scaled == {"rope_type": "yarn", "rope_theta": 7.0, "factor": 2.0}
    nested = {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 7.0}}}
    assert rope_settings(nested) == rope_settings(new)


def test_the_record_of_a_run_says_how_right_the_first_token_was() -> None:
    draft = DraftCheckpoint(
        path="draft", files={}, step=1, steps=1, epochs=1, parameters=1, trained_parameters=1,
        draft_vocab_size=1, block_size=4, held_out_eal=None,
        metrics={"position_0_acc": 0.1, "position_1_acc": 0.4},
        config={"draft": {"sample_from_anchor": False}, "aux_layer_ids": [3, 5], "target": "t"},
    )  # fmt: skip
    record = record_of(draft)
    newer = draft.model_copy(update={"metrics": {**draft.metrics, "conditional_1_acc": 0.5}})
    assert record_of(newer).first_right == 0.5 and record_of(newer).first_places is None
    counts = {"held_out_blocks": 992.0, "held_out_conversations": 39.0, "conditional_1_se": 0.02}
    counted = record_of(draft.model_copy(update={"metrics": {**newer.metrics, **counts}}))
    assert (counted.first_places, counted.first_conversations, counted.first_error) == (992, 39, 0.02)
    assert record.first_right == 0.4 and record.aux_layer_ids == (3, 5) and record.sample_from_anchor is False


CARD = """---
model-index:
- name: d
  results:
  - metrics: [{type: acceptance_length, value: 1.5}]
  - metrics: [{type: acceptance_length, value: 2.5}, {type: speed, value: 9}]
---
# A draft
"""


def test_a_published_folder_is_a_record(tmp_path: Path) -> None:
    assert record_beside(tmp_path) is None
    (tmp_path / "README.md").write_text(CARD)
    (tmp_path / "manifest.json").write_text('{"target": {"name": "t", "digest": "x"}, "captures": "c"}')
    record = record_beside(tmp_path)
    assert record is not None and record.tau == 2.0 and record.digest == "x" and record.rope_of_target
    (tmp_path / "README.md").write_text("no front matter")
    (tmp_path / "manifest.json").write_text("[]")
    assert record_beside(tmp_path) is None
