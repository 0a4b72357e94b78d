"""Loading of profiles: sources, overrides, origins and messages."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from profiles.load import ProfileProblem, builtin_names, load_profile, merge, parse_assignments
from profiles.overrides import ProfileOverrides, override_values
from profiles.schema import Profile

MINIMAL = "name: mine\ntarget:\n  model: /models/x\n  aux_layer_ids: [1, 2]\n"


def test_every_builtin_profile_loads_and_names_itself() -> None:
    assert "laptop" in builtin_names()
    for name in builtin_names():
        assert load_profile(name).profile.name == name


def test_overrides_are_merged_deep_and_their_origin_is_known() -> None:
    loaded = load_profile("laptop", {"train": {"epochs": 2}}, overrides_origin="--set")
    assert loaded.profile.train.epochs == 2
    assert loaded.profile.train.draft.block_size == load_profile("laptop").profile.train.draft.block_size
    assert loaded.origins["train.epochs"] == "--set"
    assert loaded.origins["train.lr"].startswith("laptop.yaml:")
    assert loaded.origins["train.seed"] == "default"


def test_digest_follows_the_values() -> None:
    same, other = load_profile("laptop"), load_profile("laptop", {"train": {"epochs": 2}})
    assert load_profile("laptop").digest == same.digest != other.digest


def test_a_file_is_read_as_yaml_or_json(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(MINIMAL)
    (tmp_path / "mine.json").write_text(
        '{"name": "mine", "target": {"model": "/models/x", "aux_layer_ids": [1, 2]}, "train": {"lr": 3e-3}}'
    )
    assert load_profile(str(tmp_path / "mine.yaml")).profile.target.model == "/models/x"
    assert load_profile(tmp_path / "mine.json").profile.train.lr == 0.003


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.yaml", MINIMAL + "train:\n  epochs: 1\n  epochs: 2\n"),
        ("p.json", '{"name": "x",\n "name": "y",\n "target": {}}'),
        ("p.yaml", MINIMAL + "target:\n  model: y\n"),
    ],
)
def test_a_key_given_twice_is_refused_with_its_line(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ProfileProblem, match="given twice, in line") as caught:
        load_profile(path)
    assert caught.value.where.startswith(f"{path}:")


def test_an_unknown_name_lists_the_valid_ones() -> None:
    with pytest.raises(ProfileProblem, match="unknown profile 'lapto'") as caught:
        load_profile("lapto")
    assert "did you mean 'laptop'" in caught.value.hint
    assert all(name in caught.value.hint for name in builtin_names())


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"train": {"epoch": 2}}, ("train.epoch: unknown field", "did you mean epochs", "batch_tokens")),
        ({"tran": {}}, ("tran: unknown field", "did you mean train")),
        ({"train": {"lr": 5}}, ("train.lr: 5:", "less than 1")),
        ({"train": {"epochs": "many"}}, ("train.epochs", '"many"', "integer")),
        ({"train": {"device": "tpu"}}, ("train.device", "tpu", "'auto', 'cpu' or 'cuda'")),
        ({"stream": {"max_new_tokens": 5000}}, ("stream.max_new_tokens (5000)", "target.max_model_len")),
        ({"target": 3}, ("target: 3",)),
    ],
)
def test_a_wrong_field_is_named_with_value_and_what_is_allowed(
    overrides: dict[str, object], words: tuple[str, ...]
) -> None:
    with pytest.raises(ProfileProblem) as caught:
        load_profile("laptop", overrides)
    assert all(word in caught.value.what for word in words)
    assert "overrides" in caught.value.where or "laptop.yaml" in caught.value.where


def test_every_fault_has_one_line() -> None:
    with pytest.raises(ProfileProblem) as caught:
        load_profile("laptop", {"train": {"lr": 5, "epochs": -1}, "stream": {"concurrency": 0}})
    assert len(caught.value.what.splitlines()) == 3


@pytest.mark.parametrize("text", ["", "- a\n", "just words", "a: [1,\n", "\x00"])
def test_what_is_not_a_profile_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(ProfileProblem) as caught:
        load_profile(path)
    assert str(path) in caught.value.where


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProfileProblem, match="No such file") as caught:
        load_profile(tmp_path / "none.yaml")
    assert "none.yaml" in caught.value.where


def test_assignments_become_nested_values() -> None:
    values = parse_assignments(("train.epochs=2", "train.lr=3e-3", "prompts.train_per_domain=null"))
    assert values == {"train": {"epochs": 2, "lr": 0.003}, "prompts": {"train_per_domain": None}}


@pytest.mark.parametrize("text", ["train.epochs", "=2", "train..epochs=2", "train.x=[1,"])
def test_a_malformed_assignment_is_refused(text: str) -> None:
    with pytest.raises(ProfileProblem) as caught:
        parse_assignments((text,))
    assert caught.value.where == "--set"


def test_merge_replaces_lists_and_scalars() -> None:
    assert merge({"a": {"b": [1], "c": 1}}, {"a": {"b": [2]}}) == {"a": {"b": [2], "c": 1}}


def test_overrides_mirror_every_field_with_bounds_and_words() -> None:
    schema = ProfileOverrides.model_json_schema()
    train = schema["$defs"]["TrainOverrides"]
    assert train["additionalProperties"] is False
    assert "required" not in train
    assert (
        train["properties"]["epochs"]["description"]
        == Profile.model_fields["train"]
        .annotation.model_fields[  # type: ignore[union-attr]
            "epochs"
        ]
        .description
    )
    for bad in ({"train": {"epochs": -1}}, {"train": {"epoch": 1}}, {"x": 1}, {"train": {"lr": "fast"}}):
        with pytest.raises(ValidationError):
            ProfileOverrides.model_validate(bad)


def test_null_keeps_a_value_that_cannot_be_empty_and_empties_one_that_can() -> None:
    given = ProfileOverrides.model_validate(
        {"train": {"epochs": None, "lr": 0.001}, "prompts": {"train_per_domain": None}, "stream": {}}
    )
    assert override_values(given) == {"train": {"lr": 0.001}, "prompts": {"train_per_domain": None}}


def test_overrides_reach_into_a_part_that_the_profile_leaves_empty() -> None:
    sizes = {
        "hidden_size": 64,
        "vocab_size": 100,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
    }
    given = override_values(ProfileOverrides.model_validate({"hardware": {"target": sizes}}))
    assert given == {"hardware": {"target": sizes}}
    assert load_profile("laptop", given).profile.hardware.target is not None
    one = override_values(ProfileOverrides.model_validate({"hardware": {"target": {"head_dim": 32}}}))
    larger = load_profile(load_profile("laptop", given).profile, one).profile.hardware.target
    assert larger is not None and (larger.head_dim, larger.hidden_size) == (32, 64)
    emptied = override_values(ProfileOverrides.model_validate({"hardware": {"target": None}}))
    assert emptied == {"hardware": {"target": None}}


def test_overrides_may_add_arms_and_switch_sampling_on() -> None:
    live = {"own_arms": {"mine": {"speculative_config": {"method": "ngram"}}}, "sampled": {"prompts": 2}}
    given = override_values(ProfileOverrides.model_validate({"evaluate": {"live": live}}))
    assert given == {"evaluate": {"live": live}}
    loaded = load_profile("laptop", given).profile.evaluate.live
    assert loaded.sampled is not None and loaded.sampled.prompts == 2 and set(loaded.own_arms) == {"mine"}
    on = override_values(ProfileOverrides.model_validate({"evaluate": {"live": {"sampled": {}}}}))
    assert load_profile("laptop", on).profile.evaluate.live.sampled is not None
