"""Names, addresses and limits that decide whether peers reach this node."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Mapping

from tasks.processes.ending import port_is_free
from tasks.processes.ports import port_holder
from tasks.validate.collect.findings import Findings
from tasks.validate.collect.request import ProbeRequest

_NO = ("", "0", "false", "no", "off")


def network_findings(request: ProbeRequest, environment: Mapping[str, str] = os.environ) -> Findings:
    """Facts of the `net` group; a name that does not resolve is an error, with the name."""
    found = Findings()
    hostname = socket.gethostname()
    values: dict[str, object] = {
        "hostname": hostname,
        "resolved_ip": _resolved(hostname, found),
        "data_ip": _data_ip(request, environment, found),
        "memlock_bytes": _memlock(),
        "mc_force_tcp": environment.get("MC_FORCE_TCP", "").lower() not in _NO,
        "mc_gid_index": _integer(environment.get("MC_GID_INDEX", "")),
        "loopback_addresses": _addresses("localhost"),
        "ports": {f"{field}={port}": _held(host, port) for field, (host, port) in request.ports.items()},
    }
    if request.master:
        values["master_reachable"] = _reachable(request, found)
    found.put("net", values, "resolver, getrlimit, environment")
    return found


def _resolved(hostname: str, found: Findings) -> str | None:
    """As a client of the store does it: the IPv4 address of the own name, else (IPv6-only) its first one."""
    try:
        return socket.gethostbyname(hostname)
    except OSError:
        pass
    try:
        return str(socket.getaddrinfo(hostname, None)[0][4][0])
    except OSError as error:
        found.errors["net.resolved_ip"] = f"the host's own name {hostname} does not resolve: {error}"
        return None


def _addresses(name: str) -> list[str]:
    """What a name resolves to; empty if it does not."""
    try:
        return sorted({str(info[4][0]) for info in socket.getaddrinfo(name, None)})
    except OSError:
        return []


def _held(host: str, port: int) -> str:
    """Who holds a port; empty if it is free."""
    return "" if port_is_free(host, port) else port_holder(port)


def _data_ip(request: ProbeRequest, environment: Mapping[str, str], found: Findings) -> str | None:
    """What the run says, else MOONCAKE_LOCAL_HOSTNAME, else the address from which the master is reached."""
    named = request.data_ip or environment.get("MOONCAKE_LOCAL_HOSTNAME", "")
    try:
        if named:
            return str(socket.getaddrinfo(named, None)[0][4][0])
        return _source_address(request) if request.master else None
    except OSError as error:
        found.errors["net.data_ip"] = f"{named or request.master}: {error}"
        return None


def _source_address(request: ProbeRequest) -> str:
    """Address that the kernel would send from; connecting a datagram socket sends nothing."""
    host, port = _split(request.master)
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def _reachable(request: ProbeRequest, found: Findings) -> bool:
    try:
        with socket.create_connection(_split(request.master), timeout=request.deadline_s / 2):
            return True
    except (OSError, ValueError) as error:
        found.errors["net.master_reachable"] = f"{request.master}: {error}"
        return False


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _memlock() -> int:
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return -1 if limit == resource.RLIM_INFINITY else limit


def _integer(word: str) -> int | None:
    try:
        return int(word)
    except ValueError:
        return None
