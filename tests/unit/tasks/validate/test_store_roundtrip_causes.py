"""Each return code with the log lines that decide: the named cause. The lines are Mooncake 0.3.13's."""

from __future__ import annotations

import pytest

from tasks.stream.roundtrip_settings import Failure, Operation, Placement
from tasks.validate.store_roundtrip_causes import (
    REMEDIES,
    Logs,
    cause_id_of,
    connection_cause,
    name_causes,
    sentence,
)

FULL = (
    "W1130 06:04:46.488821 22782 rpc_service.cpp:518] BatchPutStart failed for 1 keys due to insufficient "
    "space. Consider lowering eviction_high_watermark_ratio or mounting more segments."
)
CLIENT_FULL = (
    "W1130 06:03:49.540916 21704 client_service.cpp:3097] BatchPut failed for 1 keys due to insufficient "
    "space. Consider lowering eviction_high_watermark_ratio or mounting more segments."
)
PUT_BUFFER = "E1130 06 real_client.cpp:1] Failed to allocate buffer for put operation, key: k1, value size: 9"
GET_BUFFER = "E1130 06:04:04 22205 real_client.cpp:2867] Failed to allocate buffer for get_buffer, key: k1"
REFUSED = (
    "E1130 06:04:10 22365 transfer_metadata_plugin.cpp:1030] SocketHandShakePlugin: "
    "connect()10.0.0.1:16324: Connection refused [111]"
)
LOOPBACK = REFUSED.replace("10.0.0.1", "127.0.0.1")
TRANSFER_FAIL = "E1130 06 real_client.cpp:2918] Get failed for key: k1 with error: TRANSFER_FAIL"


def failure(operation: Operation, code: str, placement: Placement = "consumer", key: str = "k1") -> Failure:
    return Failure(series=0, placement=placement, operation=operation, key=key, code=code)


@pytest.mark.parametrize(
    ("failed", "logs", "cause_id"),
    [
        # Both limits answer -200 and the client logs the same line; only the master's log tells.
        (failure("put", "-200"), Logs(producer=(CLIENT_FULL,)), "local_buffer"),
        (failure("put", "-200"), Logs(producer=(CLIENT_FULL,), master=(FULL,)), "segment_full"),
        (failure("put", "-200", "producer"), Logs(producer=(CLIENT_FULL,)), "local_buffer"),
        (failure("put", "-200", "producer"), Logs(master=(FULL,)), "segment_full"),
        (failure("put", "-600"), Logs(producer=(PUT_BUFFER,)), "local_buffer"),
        (failure("put", "-600"), Logs(), "store_refused"),
        (failure("put", "-800"), Logs(producer=(REFUSED,)), "closed_port"),
        (failure("put", "-800"), Logs(), "transfer_failed"),
        (failure("put", "-900"), Logs(), "master_gone"),
        (failure("put", "-101"), Logs(), "store_refused"),
        (failure("get", "none"), Logs(consumer=(GET_BUFFER,)), "local_buffer"),
        (failure("get", "none", key="k12"), Logs(consumer=(GET_BUFFER,)), "object_missing"),
        (failure("get", "none"), Logs(producer=(GET_BUFFER,)), "object_missing"),
        (failure("get", "none"), Logs(consumer=(REFUSED, TRANSFER_FAIL)), "closed_port"),
        (failure("get", "none"), Logs(consumer=(LOOPBACK, TRANSFER_FAIL)), "closed_port"),
        (failure("get", "none"), Logs(consumer=(LOOPBACK, TRANSFER_FAIL), spans_hosts=True), "loopback_host"),
        (failure("get", "none"), Logs(consumer=(TRANSFER_FAIL,)), "transfer_failed"),
        (failure("get", "none"), Logs(), "object_missing"),
        (failure("get", "checksum"), Logs(consumer=(GET_BUFFER,)), "checksum"),
    ],
)
def test_each_code_has_its_cause(failed: Failure, logs: Logs, cause_id: str) -> None:
    assert cause_id_of(failed, logs) == cause_id
    assert REMEDIES[cause_id]


def test_causes_are_counted_and_told_apart() -> None:
    logs = Logs(consumer=(GET_BUFFER,))
    failures = [failure("put", "-200"), failure("put", "-200", key="k2"), failure("get", "none")]
    failures += [failure("get", "checksum", key="k3")]
    assert name_causes(failures, logs) == {"local_buffer": 3, "checksum": 1}
    told = sentence("local_buffer", failures, logs)
    assert told.startswith("the local buffer of the consumer and of the producer is too small")
    assert "2 puts into the consumer's segment answered -200" in told
    assert "1 get from the consumer's segment answered nothing" in told
    assert sentence("checksum", failures, logs).endswith("answered other bytes")


def test_a_closed_port_is_named_with_its_address() -> None:
    logs = Logs(consumer=(REFUSED, TRANSFER_FAIL))
    assert "10.0.0.1:16324 could not be dialled: Connection refused" in sentence(
        "closed_port", [failure("get", "none")], logs
    )


def test_a_wait_that_ended_late_is_explained_by_a_connection_that_failed() -> None:
    assert connection_cause(Logs()) is None
    found = connection_cause(Logs(producer=("other line", REFUSED)))
    assert found is not None and found[0] == "closed_port" and "10.0.0.1:16324" in found[1]
