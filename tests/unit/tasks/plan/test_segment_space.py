"""A sample that no segment can hold is refused, with its sizes and the lengths that would fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from profiles.schema import Profile
from tasks.errors import UsageError
from tasks.plan.segment_space import refuse_samples_beyond_a_segment
from tasks.stream.reserve import largest_object
from tasks.stream.sample import Shape

HIDDEN, MIB = 2048, 2**20
TOKEN = 3 * HIDDEN * 2 + 8


def profile(max_model_len: int, segment_bytes: int = 64 * MIB) -> Profile:
    target: dict[str, Any] = {"model": "m", "aux_layer_ids": [2, 8], "dtype": "bfloat16"}
    return Profile.model_validate(
        {
            "name": "t",
            "target": {**target, "max_model_len": max_model_len},
            "store": {"segment_bytes": segment_bytes},
            "stream": {"max_new_tokens": 100},
        }
    )


def test_the_limit_is_the_one_of_the_writer() -> None:
    longest = (largest_object(64 * MIB) - 192) // TOKEN + 1
    refuse_samples_beyond_a_segment(profile(longest), HIDDEN)
    assert Shape(3, HIDDEN, "bfloat16").expected_bytes(longest - 1) <= largest_object(64 * MIB)
    assert Shape(3, HIDDEN, "bfloat16").expected_bytes(longest) > largest_object(64 * MIB)
    with pytest.raises(UsageError) as caught:
        refuse_samples_beyond_a_segment(profile(longest + 1), HIDDEN)
    told = f"{longest:,} tokens", f"{TOKEN:,} bytes", f"{largest_object(64 * MIB):,}", f"{longest - 99:,})"
    assert all(value in caught.value.what for value in told)
    assert f"target.max_model_len to {longest:,}" in caught.value.hint
    assert "store.segment_bytes" in caught.value.where
    refuse_samples_beyond_a_segment(profile(longest + 1, 128 * MIB), HIDDEN)


def test_the_plan_refuses(tmp_path: Path) -> None:
    from tasks.plan.core import build_plan
    from tests.unit.tasks.plan.test_core import SMOLLM2, laptop

    (tmp_path / "config.json").write_text(json.dumps(SMOLLM2))
    small = {"store__segment_bytes": 16 * MIB, "stream__in_flight_bytes": MIB}
    build_plan(laptop(tmp_path, **small))
    config = json.dumps({**SMOLLM2, "hidden_size": 1152, "head_dim": 128})
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(UsageError, match="the largest sample cannot lie in the store: 1,023 tokens"):
        build_plan(laptop(tmp_path, **small))
