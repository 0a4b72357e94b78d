"""Fields of training that cannot work together are refused with their values."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from profiles.training import Train


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"optimizer": "muon"}, "train.muon_lr must be written out"),
        (
            {"scale": {"ranks": 4}, "packs_per_step": 6},
            r"packs_per_step \(6\) must be a multiple of the ranks",
        ),
        ({"scale": {"ranks": 2}}, r"packs_per_step \(1\) .* = 2\)"),
        ({"scale": {"nodes": 2}, "packs_per_step": 2}, "nodes is 2, so train.scale.rendezvous must say"),
        ({"scale": {"rendezvous": "here"}}, "pattern"),
        ({"early_stopping": 0}, "greater than or equal to 1"),
        ({"max_wall_s": 0}, "greater than 0"),
    ],
)
def test_training_that_cannot_work_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Train.model_validate(values)


def test_ranks_of_all_nodes_count() -> None:
    scale = {"ranks": 4, "nodes": 2, "rendezvous": "node-0:29500", "strategy": "fsdp"}
    assert Train.model_validate({"scale": scale, "packs_per_step": 16}).scale.world == 8
