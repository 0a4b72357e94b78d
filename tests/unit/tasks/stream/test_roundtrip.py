"""The ends of the round trip, as far as they need no store: addresses, counters, payloads, the link."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tasks.stream.roundtrip import as_on_this_node
from tasks.stream.roundtrip_counters import expected_devices, gained, read_counters, settle
from tasks.stream.roundtrip_link import EndStopped, Link, accept, connect, listen, require_own_address
from tasks.stream.roundtrip_measure import Rounds, digest, payload, stamp
from tasks.stream.roundtrip_settings import EndSettings, Series

SERIES = Series(
    placement="producer",
    size_bytes=10**6,
    concurrency=2,
    warmups=3,
    repetitions=10,
    least=3,
    limit_s=1,
    slowest_s=6,
)


def device(root: Path, name: str, sent: str, received: str = "0") -> None:
    folder = root / name / "statistics"
    folder.mkdir(parents=True)
    (folder / "tx_bytes").write_text(sent)
    (folder / "rx_bytes").write_text(received)


def test_network_devices_count_bytes_and_rdma_ports_count_words(tmp_path: Path) -> None:
    net, rdma = tmp_path / "net", tmp_path / "rdma"
    device(net, "eth0", "1000\n", "7")
    device(net, "gone", "", "")
    port = rdma / "mlx5_0" / "ports" / "1" / "counters"
    port.mkdir(parents=True)
    (port / "port_xmit_data").write_text("250")
    (port / "port_rcv_data").write_text("2")
    assert read_counters("sent", net, rdma) == {"eth0": 1000, "mlx5_0/1": 1000}
    assert read_counters("received", net, rdma) == {"eth0": 7, "mlx5_0/1": 8}


def test_a_counter_that_was_reset_counts_from_zero() -> None:
    assert gained({"a": 10, "b": 10}, {"a": 15, "b": 3, "c": 4}) == {"a": 5, "b": 3, "c": 4}


def test_the_payload_belongs_on_the_named_rdma_devices_or_on_the_interface_of_the_address() -> None:
    known = {"lo": 1, "mlx5_0/1": 1, "mlx5_1/1": 1, "mlx5_10/1": 1}
    assert expected_devices("rdma", "mlx5_1", "10.0.0.1", known) == ("mlx5_1/1",)
    assert expected_devices("rdma", "", "10.0.0.1", known) == ("mlx5_0/1", "mlx5_1/1", "mlx5_10/1")
    assert expected_devices("tcp", "mlx5_1", "127.0.0.1", known) == ("lo",)
    assert expected_devices("tcp", "", "203.0.113.9", known) == ()


def test_counters_that_lag_are_waited_for_and_missing_bytes_are_not_waited_for_long() -> None:
    values = iter([{"eth0": 1}, {"eth0": 5}, {"eth0": 90}, {"eth0": 99}])
    assert settle(lambda: next(values), ("eth0",), 90, longest_s=30) == {"eth0": 90}
    assert settle(lambda: {"eth0": 1}, ("eth0",), 90, longest_s=0) == {"eth0": 1}


@pytest.mark.parametrize(
    ("host", "spans", "cause_id"),
    [
        ("127.0.0.1", True, "loopback_host"),
        ("localhost", True, "loopback_host"),
        ("203.0.113.9", False, "wrong_host"),
        ("no-such-host.invalid", False, "unknown_host"),
    ],
)
def test_an_address_that_peers_cannot_use_is_refused(host: str, spans: bool, cause_id: str) -> None:
    with pytest.raises(EndStopped) as caught:
        require_own_address(host, spans)
    assert caught.value.cause_id == cause_id and host in caught.value.what


def end(**changes: Any) -> EndSettings:
    values: dict[str, Any] = {
        "role": "produce", "host": "10.0.0.1", "master": "10.0.0.1:1", "peer": "", "protocol": "tcp",
        "device": "", "spans_hosts": False, "segment_bytes": 1, "local_buffer_bytes": 1, "series": (),
        "ready_file": "r", "result_file": "e", "budget_s": 1.0, "timeout_s": 1.0,
    }  # fmt: skip
    return EndSettings.model_validate({**values, **changes})


def test_an_end_sets_up_the_transport_of_the_run_on_its_own_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MC_GID_INDEX", "0")
    monkeypatch.setenv("MC_TCP_BIND_ADDRESS", "")
    found = as_on_this_node(end(protocol="rdma", gid_index=3, interface="lo"))
    assert found.host == "127.0.0.1" and os.environ["MC_TCP_BIND_ADDRESS"] == "127.0.0.1"
    assert os.environ["MC_GID_INDEX"] == "3"
    assert as_on_this_node(end()).host == "10.0.0.1"
    with pytest.raises(EndStopped, match="'none0' does not exist on this node") as caught:
        as_on_this_node(end(interface="none0"))
    assert caught.value.cause_id == "setup_failed"


def test_loopback_is_fine_on_one_host() -> None:
    require_own_address("127.0.0.1", spans_hosts=False)


def test_a_closed_port_is_named() -> None:
    with listen("127.0.0.1") as listener:
        port = listener.getsockname()[1]
    with pytest.raises(EndStopped) as caught:
        connect(f"127.0.0.1:{port}", "the store's master")
    assert caught.value.cause_id == "closed_port" and f"127.0.0.1:{port}" in caught.value.what


def linked(timeout_s: float) -> tuple[Link, Link]:
    with listen("127.0.0.1") as listener:
        here = connect(f"127.0.0.1:{listener.getsockname()[1]}", "the other end")
        return Link(here, timeout_s), accept(listener, timeout_s)


def test_the_link_carries_lines_and_tells_when_the_other_end_has_gone() -> None:
    here, there = linked(timeout_s=5)
    here.send({"digests": {"k": "v"}})
    assert there.receive() == {"digests": {"k": "v"}}
    there.close()
    with pytest.raises(EndStopped, match="has gone"):
        here.receive()


def test_a_silent_end_is_a_timeout() -> None:
    here, there = linked(timeout_s=0.05)
    with pytest.raises(EndStopped) as caught:
        here.receive()
    assert caught.value.cause_id == "timeout"
    there.close()


def test_payloads_differ_by_slot_by_key_and_in_every_word() -> None:
    one, other = payload(0, 8192), payload(1, 8192)
    assert one.numel() * one.element_size() == 8192
    words = one.view(torch_int32()).tolist()
    assert len(set(words)) == len(words)
    before = digest(one)
    assert before != digest(other) and before == digest(payload(0, 8192))
    stamp(one, "key")
    stamped = digest(one)
    stamp(one, "another")
    assert len({before, stamped, digest(one)}) == 3


def torch_int32() -> object:
    import torch

    return torch.int32


def rounds(count: int) -> Rounds:
    made = Rounds()
    for number in range(count):
        made.add(0.1 * (number + 1), [float(number), float(number)])
    return made


def test_warm_ups_do_not_count_and_few_rounds_keep_most() -> None:
    full = rounds(13).times("put", 4, SERIES)
    assert full.succeeded == 26 and full.milliseconds == tuple(float(n) for n in range(3, 13) for _ in "ab")
    assert full.gb_per_s == pytest.approx(20 * 1e6 / 1e9 / sum(0.1 * (n + 1) for n in range(3, 13)))
    assert len(rounds(4).times("put", 4, SERIES).milliseconds) == 6
    assert len(rounds(1).times("put", 4, SERIES).milliseconds) == 2


def test_a_series_without_a_success_has_no_rate() -> None:
    failed = Rounds()
    failed.add(0.5, [])
    assert failed.times("get", 0, SERIES).gb_per_s is None
