"""Byte counters of network devices, and on which of them a payload belongs."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

NET_ROOT = Path("/sys/class/net")
RDMA_ROOT = Path("/sys/class/infiniband")
_RDMA_WORD_BYTES = 4  # port_xmit_data and port_rcv_data count words, not bytes
_POLL_S = 0.05

Direction = Literal["sent", "received"]
_NET_FILE: dict[Direction, str] = {"sent": "tx_bytes", "received": "rx_bytes"}
_RDMA_FILE: dict[Direction, str] = {"sent": "port_xmit_data", "received": "port_rcv_data"}


def read_counters(direction: Direction, net: Path = NET_ROOT, rdma: Path = RDMA_ROOT) -> dict[str, int]:
    """Bytes that each device has carried since it came up.

    Network devices under their name, RDMA devices as `device/port`. A device that vanishes or keeps no
    counter is left out.
    """
    found: dict[str, int] = {}
    for path in sorted(net.glob(f"*/statistics/{_NET_FILE[direction]}")):
        if (value := _number(path)) is not None:
            found[path.parts[-3]] = value
    for path in sorted(rdma.glob(f"*/ports/*/counters/{_RDMA_FILE[direction]}")):
        if (value := _number(path)) is not None:
            found[f"{path.parts[-5]}/{path.parts[-3]}"] = value * _RDMA_WORD_BYTES
    return found


def gained(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Bytes since `before`; a counter that was reset, or a device that is new, counts from zero."""
    return {
        device: value - before.get(device, 0) if value >= before.get(device, 0) else value
        for device, value in after.items()
    }


def expected_devices(protocol: str, device: str, host: str, known: Mapping[str, int]) -> tuple[str, ...]:
    """Devices on which the payload belongs.

    Args:
        protocol: `tcp`: the interface that holds `host`. `rdma`: the devices named, or all of them.
        device: RDMA device names, comma separated; empty means that Mooncake chooses.
        known: Devices with counters.
    """
    if protocol == "rdma":
        named = {name.strip() for name in device.split(",") if name.strip()}
        ports = [port for port in known if "/" in port]
        return tuple(port for port in ports if not named or port.partition("/")[0] in named)
    holders = interfaces_of(host)
    return tuple(name for name in known if name in holders)


def interfaces_of(host: str) -> set[str]:
    """Interfaces that hold an address of `host`."""
    import psutil

    addresses = resolve(host)
    return {
        name
        for name, entries in psutil.net_if_addrs().items()
        if any(entry.address.partition("%")[0] in addresses for entry in entries)
    }


def resolve(host: str) -> set[str]:
    """Addresses of a host name or address, without zone.

    Raises:
        OSError: It does not resolve.
    """
    return {str(info[4][0]).partition("%")[0] for info in socket.getaddrinfo(host, None)}


def settle(
    read: Callable[[], dict[str, int]], expected: tuple[str, ...], wanted_bytes: float, longest_s: float
) -> dict[str, int]:
    """Read until the expected devices show the bytes: some drivers renew their counters once a second."""
    deadline = time.monotonic() + longest_s
    while True:
        found = read()
        if sum(found.get(device, 0) for device in expected) >= wanted_bytes:
            return found
        if time.monotonic() >= deadline:
            return found
        time.sleep(_POLL_S)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
