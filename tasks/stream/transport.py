"""What Mooncake reads from the environment about the transport, and whether this node has it."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from tasks.errors import UsageError

_DEVICES = Path("/sys/class/infiniband")
NODE_ADDRESS_ENV = "RETRAIN_DSPARK_NODE_ADDRESS"
"""Set by a launcher of nodes for each process: the address of its own node."""


@dataclass(frozen=True)
class Transport:
    """How this process reaches the store. Fields as in the profile's `store`."""

    protocol: str
    device: str
    gid_index: int | None
    interface: str
    host: str

    def environment(self) -> dict[str, str]:
        """Variables that Mooncake reads when its library is loaded; later changes have no effect.

        Raises:
            UsageError: The interface has no address.
        """
        variables = {}
        if self.gid_index is not None:
            variables["MC_GID_INDEX"] = str(self.gid_index)
        if self.interface:
            variables["MC_TCP_BIND_ADDRESS"] = self.address()
        if ":" in self.address():
            variables["MC_USE_IPV6"] = "1"  # else it takes part of a peer's address for the port
        return variables

    def address(self) -> str:
        """Address that this process gives to its peers: the interface's, the node's in a cluster, or `host`.

        Raises:
            UsageError: The interface is not there or has no IPv4 or global IPv6 address.
        """
        return address_of(self.interface) if self.interface else os.environ.get(NODE_ADDRESS_ENV) or self.host

    def require(self, devices: Path = _DEVICES) -> None:
        """Check that the node has what the transport needs.

        Raises:
            UsageError: `rdma` without an active port, or a device that is not there or has none.
        """
        if self.protocol != "rdma":
            return
        active = active_devices(devices)
        wanted = [name.strip() for name in self.device.split(",") if name.strip()]
        missing = [name for name in wanted if not active.get(name)]
        if missing or not any(active.values()):
            shown = ", ".join(
                f"{name}: {'active' if up else 'no active port'}" for name, up in active.items()
            )
            raise UsageError(
                f"no active RDMA port on {', '.join(missing) or 'any device'} of this node "
                f"({shown or 'no RDMA device'})",
                where="store.device" if missing else "store.protocol",
                hint="name devices with an active port, mend the link, or set store.protocol to tcp",
            )


def active_devices(devices: Path = _DEVICES) -> Mapping[str, bool]:
    """RDMA devices of this node -> whether one of its ports is active."""
    return {
        device.name: any("ACTIVE" in _text(port / "state") for port in (device / "ports").glob("*"))
        for device in (sorted(devices.iterdir()) if devices.is_dir() else ())
    }


def address_of(interface: str) -> str:
    """First IPv4 address of an interface, else its first IPv6 address that is not link-local.

    Raises:
        UsageError: It is not there or has neither.
    """
    known = psutil.net_if_addrs()
    addresses = known.get(interface, [])
    four = [one.address for one in addresses if one.family == socket.AF_INET]
    six = [one.address for one in addresses if one.family == socket.AF_INET6]
    usable = [*four, *(address for address in six if not address.lower().startswith("fe80"))]
    if not usable:
        what = "has no usable address" if interface in known else "does not exist"
        raise UsageError(
            f"the network interface '{interface}' {what} on this node",
            where="store.interface",
            hint=f"this node has: {', '.join(sorted(known))}",
        )
    return usable[0]


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
