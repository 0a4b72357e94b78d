"""The stage's checks of its inputs; no process is started for captures that cannot be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from profiles.schema import Profile
from tasks.errors import StageInputError
from tasks.serve.target_folder import read_target_config
from tasks.stream.models import CaptureCounters, CaptureManifest
from tasks.train.core import check_inputs, target_name
from tests.unit.tasks.train.conftest import AUX_LAYERS, HIDDEN, TinyWorld


def profile(model: str = "tiny", layers: tuple[int, ...] = AUX_LAYERS) -> Profile:
    return Profile.model_validate(
        {"name": "tiny", "target": {"model": model, "aux_layer_ids": layers, "max_model_len": 512}}
    )


def captures(**changes: Any) -> CaptureManifest:
    values: dict[str, Any] = {
        "log": "log",
        "digest": "d",
        "target": "t",
        "layer_ids": (*AUX_LAYERS, 4),
        "hidden_size": HIDDEN,
        "dtype": "float32",
        "samples": 3,
        "tokens": 60,
        "trainable_tokens": 40,
        "distinct_tokens": 9,
        "bytes": 1,
        "splits": {},
        "counters": CaptureCounters(),
    }
    return CaptureManifest.model_validate(values | changes)


def test_captures_of_this_target_and_profile_are_accepted(world: TinyWorld) -> None:
    check_inputs(profile(), captures(), read_target_config(world.target))


@pytest.mark.parametrize(
    ("changes", "said", "where"),
    [
        ({"layer_ids": (1, 2, 4)}, r"hold layers \[1, 2, 4\], the draft needs \[1, 3, 4\]", "aux_layer_ids"),
        ({"hidden_size": 32}, "hidden size 32, the target 64", "target.model"),
        ({"trainable_tokens": 0}, "no answer token to learn from", "stream"),
    ],
)
def test_captures_that_do_not_fit_are_refused(
    world: TinyWorld, changes: dict[str, Any], said: str, where: str
) -> None:
    with pytest.raises(StageInputError, match=said) as caught:
        check_inputs(profile(), captures(**changes), read_target_config(world.target))
    assert where in caught.value.where and caught.value.hint


def test_exported_name_of_the_target_is_never_a_path(tmp_path: Path) -> None:
    assert target_name(profile("org/model")) == "org/model"
    assert target_name(profile(str(tmp_path))) == tmp_path.name
    assert target_name(profile("~/models/mine")) == "mine"
