"""What a node says of its own network: the fabric's interface, its address, free ports, who listens.

Standard library only: it runs under the bare interpreter of a node.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct

_SIOCGIFADDR = 0x8915
_TRIES = 200


def own_address(interface: str, towards: str) -> str:
    """Address of `interface`; without one, the address from which `towards` is reached.

    Raises:
        OSError: There is no such interface or no way there.
    """
    if interface:
        return _ipv4_of(interface) or _ipv6_of(interface)
    family, kind, protocol, _, place = socket.getaddrinfo(towards, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(place)  # sends nothing: it only asks the routing table
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str:
    """Interface that has this address; empty if none has it."""
    for _, name in socket.if_nameindex():
        if address in (_ipv4_of(name), _quiet_ipv6(name)):
            return name
    return ""


def _ipv4_of(interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            packed = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            return ""
    return socket.inet_ntoa(packed[20:24])


def _ipv6_of(interface: str) -> str:
    with open("/proc/net/if_inet6", encoding="ascii") as stream:
        for line in stream:
            digits, _, _, scope, _, name = line.split()
            if name == interface and scope == "00":
                return str(ipaddress.ip_address(bytes.fromhex(digits)))
    raise OSError(f"the interface '{interface}' is not there or has no address")


def _quiet_ipv6(interface: str) -> str:
    try:
        return _ipv6_of(interface)
    except OSError:
        return ""


def take_port(host: str, wanted: int, first: int, last: int) -> int:
    """A port of `host` that is free now: the wanted one, one of a range, or any (`first` 0); else 0."""
    candidates = [wanted] if wanted else range(first, last + 1) if first else [0] * _TRIES
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in candidates:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    return 0


def listens(leader: int, port: int) -> bool:
    """Whether a process of `leader`'s group or session listens on `port`."""
    inodes = {f"socket:[{inode}]" for inode in _listening(port)}
    return any(_holds(pid, inodes) for pid in _session_of(leader)) if inodes else False


def _listening(port: int) -> set[str]:
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as stream:
                rows = [line.split() for line in stream][1:]
        except OSError:
            continue
        found |= {row[9] for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port}
    return found


def _session_of(leader: int) -> list[int]:
    members = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as stream:
                text = stream.read()
        except OSError:
            continue
        _, _, group, session = text[text.rindex(")") + 2 :].split()[:4]
        if leader in (int(name), int(group), int(session)):
            members.append(int(name))
    return members


def _holds(pid: int, inodes: set[str]) -> bool:
    try:
        links = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    for link in links:
        try:
            if os.readlink(f"/proc/{pid}/fd/{link}") in inodes:
                return True
        except OSError:
            continue
    return False
