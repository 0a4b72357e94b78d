"""Addresses in a profile: how IPv6 is written, and which ones another host can reach."""

from __future__ import annotations

import ipaddress

_WILDCARDS = frozenset({"", "*", "0.0.0.0", "::"})
_LARGEST_PORT = 65535


def plain_host(text: str, field: str) -> str:
    """A host without port; brackets around IPv6 are taken off.

    Raises:
        ValueError: It holds a port, or is a wildcard, which nobody can give as an own address.
    """
    host = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if host in _WILDCARDS:
        raise ValueError(
            f"{field} is '{text}', a wildcard: it is the address that clients give as their own, so name one "
            "of this machine's (`ip -brief address`), or 127.0.0.1 where everything is on one host"
        )
    if ":" in host and not _is_ipv6(host):
        raise ValueError(f"{field} is '{text}': write the host alone; its port is store.rpc_port")
    return host


def checked_address(text: str, field: str) -> str:
    """`HOST:PORT`, IPv6 in brackets.

    Raises:
        ValueError: It is not; for IPv6 without brackets with the right spelling.
    """
    host, _, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not bracketed and ":" in host:
        raise ValueError(f"{field} is '{text}': write IPv6 in brackets, {_spelling(text)}")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) <= _LARGEST_PORT:
        raise ValueError(f"{field} is '{text}': write HOST:PORT, with a port from 1 to {_LARGEST_PORT}")
    plain = plain_host(host, field)
    if bracketed != _is_ipv6(plain) or any(letter.isspace() or letter in "[]/" for letter in plain):
        raise ValueError(f"{field} is '{text}': write HOST:PORT or [IPv6]:PORT")
    return text


def host_of(address: str) -> str:
    """Host of a `HOST:PORT`, without brackets."""
    return address.rpartition(":")[0].strip("[]")


def join_address(host: str, port: int) -> str:
    """`HOST:PORT`, IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether a host reaches itself by this name or address, and no other host does."""
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return host.lower() == "localhost" or host.lower().endswith(".localhost")


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text.partition("%")[0]).version == 6
    except ValueError:
        return False


def _spelling(text: str) -> str:
    """How an unbracketed IPv6 address with or without a port may be meant."""
    host, _, port = text.rpartition(":")
    plain = text.strip("[]")
    whole, parted = _is_ipv6(plain), _is_ipv6(host) and port.isdigit()
    ways = [*([f"[{plain}]:PORT"] if whole else ()), *([f"[{host}]:{port}"] if parted else ())]
    return " or ".join(ways) or "[IPv6]:PORT"
