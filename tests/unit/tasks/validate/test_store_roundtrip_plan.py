"""Sizes and concurrency follow the run's own settings; facts follow what both ends saw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from profiles.schema import Profile
from tasks.processes.places import LocalPlace
from tasks.stream.roundtrip_settings import EndResult, Failure, Series, Times, Traffic
from tasks.validate.store_roundtrip import _settings
from tasks.validate.store_roundtrip_causes import Logs
from tasks.validate.store_roundtrip_outcome import Outcome, crossings, percentile, store_facts, worst_crossing
from tasks.validate.store_roundtrip_plan import StoreEnds, ends_of, planned_series

MIB = 2**20
ENDS = StoreEnds("10.0.0.1", "10.0.0.2", spans_hosts=True)


def profile(**store: Any) -> Profile:
    return Profile.model_validate(
        {
            "name": "t",
            "target": {"model": "m", "aux_layer_ids": [2, 8], "max_model_len": 512},
            "store": store,
            "stream": {"max_new_tokens": 64, "in_flight_bytes": 64 * MIB},
        }
    )


def sizes(planned: tuple[Series, ...]) -> list[tuple[int, int]]:
    return [(one.size_bytes, one.concurrency) for one in planned if one.placement == "producer"]


def test_small_bulk_and_sample_are_moved_alone_and_by_all_writers_in_both_placements() -> None:
    planned = planned_series(profile(writer_threads=3, local_buffer_bytes=512 * MIB), 10_000_001)
    assert sizes(planned) == [
        (4096, 1), (4096, 3), (64 * MIB, 1), (64 * MIB, 3), (10_000_004, 1), (10_000_004, 3)
    ]  # fmt: skip
    assert {one.placement for one in planned} == {"producer", "consumer"}
    assert len(planned) == 12


def test_the_yardstick_shrinks_to_the_runs_buffer_and_the_sample_does_not() -> None:
    planned = planned_series(profile(writer_threads=2, local_buffer_bytes=50 * MIB), 60 * MIB)
    assert (20 * MIB, 2) in sizes(planned) and (60 * MIB, 1) in sizes(planned)


def test_never_more_of_the_largest_samples_at_once_than_the_budget_lets_in() -> None:
    planned = planned_series(profile(writer_threads=4), 30 * MIB)
    assert (30 * MIB, 2) in sizes(planned) and (30 * MIB, 4) not in sizes(planned)


def test_the_rate_is_judged_on_more_than_a_cold_first_round() -> None:
    planned = planned_series(profile(writer_threads=2), 30 * MIB)
    least = {(one.placement, one.size_bytes == 30 * MIB): one.least for one in planned}
    assert least == {
        ("producer", False): 1, ("producer", True): 3, ("consumer", False): 1, ("consumer", True): 2
    }  # fmt: skip


def test_one_writer_is_measured_once() -> None:
    assert len(planned_series(profile(writer_threads=1), MIB)) == 6


def test_one_machine_has_both_ends_on_the_stores_address() -> None:
    here = LocalPlace(profile())
    assert ends_of(here, here) == StoreEnds("127.0.0.1", "127.0.0.1", spans_hosts=False)


def test_each_end_is_on_the_node_of_its_role() -> None:
    serve = LocalPlace(profile(host="10.0.0.1"), ("n1", "n2"))
    train = LocalPlace(profile(host="10.0.0.3"), ("n3",))
    assert ends_of(serve, train) == StoreEnds("10.0.0.1", "10.0.0.3", spans_hosts=True)


@pytest.mark.parametrize("role", ["produce", "consume"])
def test_both_ends_use_the_transport_of_the_run(role: Any, tmp_path: Path) -> None:
    store = {"protocol": "rdma", "device": "mlx5_1", "gid_index": 3, "interface": "fabric0"}
    told = _settings(profile(**store), 4096, ENDS, "10.0.0.1:1", tmp_path)[role]
    assert (told.protocol, told.device, told.gid_index, told.interface) == ("rdma", "mlx5_1", 3, "fabric0")


def traffic(placement: Any, payload: int, devices: dict[str, int], expected: tuple[str, ...]) -> Traffic:
    return Traffic(placement=placement, payload_bytes=payload, device_bytes=devices, expected=expected)


def outcome(**changes: Any) -> Outcome:
    series = planned_series(profile(writer_threads=1), MIB)
    sample = next(n for n, one in enumerate(series) if one.size_bytes == MIB)
    values: dict[str, Any] = {
        "producer": EndResult(
            times=(Times(series=sample, operation="put", succeeded=3, milliseconds=(1, 2, 9), gb_per_s=7.0),),
            traffic=(
                traffic("producer", 100, {"eth0": 101, "lo": 900}, ("eth0",)),
                traffic("consumer", 100, {"eth0": 98}, ("eth0",)),
            ),
        ),
        "consumer": EndResult(
            times=(Times(series=sample, operation="get", succeeded=3, milliseconds=(4, 5, 6), gb_per_s=3.0),),
            traffic=(
                traffic("producer", 100, {"eth1": 150}, ("eth1",)),
                traffic("consumer", 100, {"eth1": 95}, ("eth1",)),
            ),
        ),
        "series": series,
        "logs": Logs(),
    }
    return Outcome(**{**values, **changes})


def test_facts_tell_the_worse_placement_and_the_rate_of_the_samples() -> None:
    facts = store_facts(profile(writer_threads=1), MIB, ENDS, 2.0, outcome())
    assert (facts.cause, facts.ran, facts.spans_hosts) == ("", True, True)
    assert (facts.observed_gb_per_s, facts.required_gb_per_s) == (3.0, 2.0)
    assert (facts.payload_bytes, facts.crossed_bytes, facts.interface) == (100, 95, "eth0 -> eth1")
    put, get = facts.transfers
    assert (put.operation, put.p50_ms, put.p95_ms, put.succeeded) == ("put", 2, 9, 3)
    assert (get.operation, get.p50_ms, get.gb_per_s) == ("get", 5, 3.0)


def test_bytes_on_another_device_or_on_none_do_not_count() -> None:
    first = crossings(outcome())[0]
    assert first.crossed_bytes == 101, "what lo carried is left out"
    lost = EndResult(traffic=(traffic("producer", 100, {"eth1": 100}, ()),))
    worst = worst_crossing(crossings(outcome(consumer=lost)))
    assert worst is not None and worst.crossed_bytes is None and worst.devices == ("eth0", "none")


def test_a_placement_that_was_left_out_says_nothing_about_the_link() -> None:
    """A link that is far too slow uses up the time; what was measured is judged, the rest is not."""
    sent = EndResult(
        traffic=(
            traffic("producer", 100, {"eth0": 100}, ("eth0",)),
            traffic("consumer", 0, {"eth0": 0}, ("eth0",)),
        )
    )
    received = EndResult(
        traffic=(
            traffic("producer", 100, {"eth1": 100}, ("eth1",)),
            traffic("consumer", 0, {"eth1": 0}, ("eth1",)),
        )
    )
    found = crossings(outcome(producer=sent, consumer=received))
    assert [one.placement for one in found] == ["producer"]


def test_failures_are_counted_by_code_and_become_the_cause() -> None:
    failed = [
        Failure(series=0, placement="producer", operation="get", key=f"k{n}", code=code)
        for n, code in enumerate(["none", "none", "checksum"])
    ]
    times = (Times(series=0, operation="get", succeeded=5),)
    consumer = EndResult(failures=tuple(failed), times=times)
    facts = store_facts(profile(writer_threads=1), MIB, ENDS, 0.0, outcome(consumer=consumer))
    get = next(one for one in facts.transfers if one.operation == "get")
    assert (get.return_codes, get.checksum_mismatches, get.succeeded) == ({"none": 2}, 1, 4)
    assert (facts.cause_id, facts.failures) == ("object_missing", {"object_missing": 2, "checksum": 1})
    assert "other bytes" in facts.cause


def test_an_end_that_stopped_is_the_cause() -> None:
    stopped = outcome(stopped=("closed_port", "consumer: nobody there"), consumer=EndResult())
    facts = store_facts(profile(), MIB, ENDS, 0.0, stopped)
    assert (facts.cause_id, facts.cause, facts.observed_gb_per_s) == (
        "closed_port", "consumer: nobody there", None
    )  # fmt: skip


@pytest.mark.parametrize(("share", "value"), [(0.5, 50), (0.95, 95), (1.0, 100), (0.01, 1)])
def test_percentiles(share: float, value: float) -> None:
    assert percentile([float(n) for n in range(100, 0, -1)], share) == value
    assert percentile([], share) is None and percentile([7.0], share) == 7.0
