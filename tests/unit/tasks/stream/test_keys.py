"""A run's keys are found, and never another run's."""

from __future__ import annotations

import re

import pytest

from tasks.stream.keys import key_pattern, ready_pattern, request_id, request_pattern, request_prefix


def keys_of(run_id: str) -> list[str]:
    """Keys as vLLM and the connector make them of a run's request ids."""
    ids = [request_id(run_id, number, "0a1b2c3d", attempt) for number in (0, 17) for attempt in (1, 12)]
    ends = ("", "-5e6f7a8b-0011223344556677-1a")
    keys = [f"cmpl-{one}-0-1f2e3d4c{end}" for one in ids for end in ends]
    safe = re.sub("[^a-zA-Z0-9_-]", "_", run_id)
    ready = [
        f"cmpl-{safe}-{name}-0-1f2e3d4c-5e6f7a8b-0011223344556677-1a"
        for name in ("ready", "readyx0", "readyx15")
    ]
    return [*keys, f"{keys[0]}:error", *ready]


def test_what_readiness_leaves_is_told_from_samples() -> None:
    found = [key for key in keys_of("run") if re.match(ready_pattern("run"), key)]
    assert len(found) == 3 and all("-ready" in key for key in found)


@pytest.mark.parametrize("run_id", ["run", "20261130-021405-laptop-1f3a9c2e", "a.b"])
def test_every_key_of_a_run_is_found(run_id: str) -> None:
    assert all(re.match(key_pattern(run_id), key) for key in keys_of(run_id))


@pytest.mark.parametrize("other", ["run-1", "run-ready", "run-canary", "run-1-2", "ru", "run_", "arun"])
def test_a_run_whose_name_begins_alike_is_left_alone(other: str) -> None:
    assert not [key for key in keys_of(other) if re.match(key_pattern("run"), key)]


def test_names_that_become_alike_in_a_key_stay_apart() -> None:
    assert request_prefix("a.b") != request_prefix("a_b") != request_prefix("a:b")
    assert not [key for key in keys_of("a.b")[:-3] if re.match(key_pattern("a_b"), key)]


def test_one_request_is_found_alone() -> None:
    first, eleventh = (request_id("run", 1, "0a1b2c3d", attempt) for attempt in (1, 11))
    pattern = request_pattern([first])
    assert re.match(pattern, f"cmpl-{first}-0-abc") and re.match(pattern, f"cmpl-{first}-0-abc:error")
    assert not re.match(pattern, f"cmpl-{eleventh}-0-abc")
