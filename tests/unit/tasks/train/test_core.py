"""The stage's checks of its inputs; no process is started for captures that cannot be used."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from profiles.schema import Profile
from tasks.errors import StageInputError
from tasks.serve.target_folder import read_target_config
from tasks.stream.models import CaptureCounters, CaptureManifest
from tasks.train.command import torchrun_argv
from tasks.train.core import check_inputs, target_name, trainer_spec
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


def test_one_rank_is_one_process_and_several_are_torchruns(world: TinyWorld, tmp_path: Path) -> None:
    alone = trainer_spec(world.settings(tmp_path / "one", stop_grace_s=7))
    assert alone.argv == (sys.executable, "-m", "tasks.train.run", str(tmp_path / "one/config.json"))
    assert alone.grace_s == 7
    four = trainer_spec(world.settings(tmp_path / "four", packs_per_step=8, scale={"ranks": 4}))
    assert four.argv[1:5] == ("-m", "tasks.train.torchrun", "--nnodes=1", "--nproc-per-node=4")
    assert four.argv[-3:] == ("-m", "tasks.train.run", str(tmp_path / "four/config.json"))


def test_each_node_gets_its_own_command_and_a_run_on_this_machine_none(
    world: TinyWorld, tmp_path: Path
) -> None:
    scale = {"ranks": 2, "nodes": 2, "rendezvous": "10.0.0.1:29500"}
    settings = world.settings(tmp_path, packs_per_step=4, scale=scale)
    first, second = (torchrun_argv(settings.train.scale, "run", ("m", "c"), node) for node in (0, 1))
    assert {"--nnodes=2", "--rdzv-endpoint=10.0.0.1:29500", "--rdzv-id=run"} <= set(first)
    assert set(first) ^ set(second) == {"--rdzv-conf=is_host=1", "--rdzv-conf=is_host=0"}
    with pytest.raises(StageInputError, match=r"train.scale.nodes is 2, but"):
        trainer_spec(settings)
