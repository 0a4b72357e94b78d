"""What Mooncake is told about the transport, and what a node must have for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiles.store import Store
from tasks.errors import UsageError
from tasks.stream.transport import Transport


def device(root: Path, name: str, *states: str) -> None:
    for number, state in enumerate(states, start=1):
        port = root / name / "ports" / str(number)
        port.mkdir(parents=True)
        (port / "state").write_text(f"{state}\n")


def rdma(devices: str = "") -> Transport:
    return Transport("rdma", devices, 3, "", "192.0.2.1")


def test_environment_holds_what_the_profile_says() -> None:
    assert rdma().environment() == {"MC_GID_INDEX": "3"}
    assert Transport("tcp", "", None, "", "192.0.2.1").environment() == {}
    over = Transport("tcp", "", None, "lo", "192.0.2.1")
    assert over.environment() == {"MC_TCP_BIND_ADDRESS": "127.0.0.1"} and over.address() == "127.0.0.1"


def test_unknown_interface_names_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        Transport("tcp", "", None, "fabric9", "192.0.2.1").address()
    assert caught.value.where == "store.interface" and "lo" in caught.value.hint


def test_rdma_needs_an_active_port(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no RDMA device"):
        rdma().require(tmp_path)
    device(tmp_path, "mlx5_0", "1: DOWN")
    with pytest.raises(UsageError, match="mlx5_0: no active port"):
        rdma().require(tmp_path)
    device(tmp_path, "mlx5_1", "1: DOWN", "4: ACTIVE")
    rdma().require(tmp_path)
    rdma("mlx5_1").require(tmp_path)
    with pytest.raises(UsageError, match="on mlx5_0, mlx5_7 of this node") as caught:
        rdma("mlx5_0, mlx5_1,mlx5_7").require(tmp_path)
    assert caught.value.where == "store.device"


def test_tcp_needs_no_device(tmp_path: Path) -> None:
    Transport("tcp", "", None, "", "192.0.2.1").require(tmp_path)


def test_gid_index_without_rdma_is_refused() -> None:
    with pytest.raises(ValueError, match=r"store\.gid_index"):
        Store(protocol="tcp", gid_index=3)


@pytest.mark.parametrize(("host", "needs"), [("2001:db8::5", True), ("192.0.2.1", False), ("data-1", False)])
def test_ipv6_is_switched_on_where_the_own_address_is_one(host: str, needs: bool) -> None:
    assert ("MC_USE_IPV6" in Transport("tcp", "", None, "", host).environment()) == needs
