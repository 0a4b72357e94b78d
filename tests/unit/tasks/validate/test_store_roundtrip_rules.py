"""Buffers, segments, rate and bytes on the wire: the rules, and what facts mean under them."""

from __future__ import annotations

from typing import Any

import pytest
from store_facts import GIB, MIB, healthy_store

from tasks.plan.sizes import bytes_per_token
from tasks.validate.store_facts import StoreFacts
from tasks.validate.store_roundtrip_causes import REMEDIES
from tasks.validate.store_roundtrip_rules import (
    crossing_shortfall,
    local_buffer_shortfall,
    needed_local_buffer_bytes,
    needed_segment_bytes,
    required_gb_per_s,
    said,
    segment_shortfall,
)
from tasks.validate.store_roundtrip_verdict import observed_text, problems, required_text

K3_TOKEN = bytes_per_token(hidden_size=7168, aux_layers=5, dtype="bfloat16")


def test_the_published_k3_capture_has_86024_bytes_a_token() -> None:
    assert K3_TOKEN == 86_024


@pytest.mark.parametrize(
    ("tokens", "writers", "size"),
    [(8192, 4, "4 GiB"), (32768, 4, "14 GiB"), (8192, 2, "2 GiB"), (2048, 4, "841 MiB")],
)
def test_the_local_buffer_is_named_in_whole_units(tokens: int, writers: int, size: str) -> None:
    assert said(needed_local_buffer_bytes(tokens * K3_TOKEN, writers)) == size


def test_the_default_buffer_is_too_small_for_four_writers_of_8192_tokens_and_4_gib_is_enough() -> None:
    short = local_buffer_shortfall(2 * GIB, 8192 * K3_TOKEN, 4)
    assert "2 GiB does not hold 4 samples of 704.7 MB" in short and short.endswith("must have 4 GiB")
    assert local_buffer_shortfall(4 * GIB, 8192 * K3_TOKEN, 4) == ""


def test_the_buffer_limit_is_exact() -> None:
    assert needed_local_buffer_bytes(84 * MIB, 4) == 420 * MIB
    assert local_buffer_shortfall(420 * MIB, 84 * MIB, 4) == ""
    assert local_buffer_shortfall(420 * MIB - 1, 84 * MIB, 4) != ""


def test_segments_hold_the_bytes_in_flight_below_the_eviction_mark() -> None:
    assert needed_segment_bytes(900) == 1000
    assert segment_shortfall(1000, 900) == "" and segment_shortfall(999, 900) != ""
    assert needed_segment_bytes(900, safety=2) == 2000
    assert "16 GiB" in segment_shortfall(4 * GIB, 7 * GIB, safety=2)


@pytest.mark.parametrize(("tokens_per_s", "rate"), [(5_000, 0.65), (20_000, 2.58), (60_000, 7.74), (0, 0)])
def test_required_rate(tokens_per_s: float, rate: float) -> None:
    assert required_gb_per_s(tokens_per_s, K3_TOKEN) == pytest.approx(rate, abs=0.01)


@pytest.mark.parametrize(
    ("payload", "crossed", "good"),
    [
        (1000, 900, True),
        (1000, 899, False),
        (1000, 0, False),
        (1000, None, False),
        (0, 0, False),
        (None, 9, False),
    ],
)
def test_nine_tenths_of_the_payload_must_be_seen(
    payload: int | None, crossed: int | None, good: bool
) -> None:
    short = crossing_shortfall(payload, crossed)
    assert short == "" if good else short.startswith("payload did not cross the network")


def test_a_healthy_round_trip_has_no_problem() -> None:
    store = healthy_store()
    assert problems(store) == ()
    assert "5.00 GB/s" in observed_text(store) and "0.3 ms (95 %: 0.9 ms)" in observed_text(store)
    assert "at least 2.60 GB/s, across the network" in required_text(store)


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("local_buffer", {"local_buffer_bytes": 2 * GIB}, "4 GiB"),
    ("local_buffer", {"writer_threads": 1, "readers": 5}, "5 samples"),
    ("segment_full", {"in_flight_bytes": 15 * GIB}, "17 GiB"),
    ("not_crossed", {"crossed_bytes": 1_000}, "payload did not cross the network"),
    ("not_crossed", {"crossed_bytes": None}, "payload did not cross the network"),
    ("not_crossed", {"payload_bytes": None}, "payload did not cross the network"),
    ("too_slow", {"observed_gb_per_s": 2.59}, "2.59 GB/s were measured, the plan needs 2.60 GB/s"),
    ("checksum", {"cause_id": "checksum", "cause": "bytes changed"}, "bytes changed"),
    ("store_refused", {"cause": "put answered -200"}, "-200"),
    ("not_observed", {"ran": False}, "not run"),
    ("not_observed", {"observed_gb_per_s": None}, "observed_gb_per_s"),
    ("not_observed", {"required_gb_per_s": None}, "required_gb_per_s"),
    ("not_observed", {"spans_hosts": None}, "spans_hosts"),
    ("not_observed", {"sample_bytes": None}, "sample_bytes"),
    ("not_observed", {"local_buffer_bytes": None}, "local_buffer_bytes"),
    ("not_observed", {"segment_bytes": None}, "segment_bytes"),
    ("not_observed", {"writer_threads": None}, "writer_threads"),
]


@pytest.mark.parametrize(("cause_id", "changes", "text"), BAD)
def test_each_problem_is_named_alone_and_has_a_remedy(
    cause_id: str, changes: dict[str, Any], text: str
) -> None:
    found = problems(healthy_store(**changes))
    assert [one.cause_id for one in found] == [cause_id]
    assert text in found[0].what and found[0].remedy == REMEDIES[cause_id]


def test_a_rule_and_the_failures_that_it_explains_are_one_problem() -> None:
    found = problems(
        healthy_store(
            local_buffer_bytes=2 * GIB, cause_id="local_buffer", cause="2 puts answered -200", crossed_bytes=0
        )
    )
    assert [one.cause_id for one in found] == ["local_buffer"]
    assert "4 GiB" in found[0].what and "2 puts answered -200" in found[0].what


def test_on_one_host_no_byte_has_to_cross_a_network() -> None:
    assert problems(healthy_store(spans_hosts=False, crossed_bytes=None, payload_bytes=None)) == ()


def test_nothing_observed_never_passes() -> None:
    assert problems(StoreFacts()) and problems(StoreFacts(ran=True))
