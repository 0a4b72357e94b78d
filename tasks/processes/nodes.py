"""A machine of the plan, and how a command gets to it."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from typing import Literal

NodeRole = Literal["serve", "train", "serve+train"]


@dataclass(frozen=True)
class Node:
    """One machine that a launcher can start processes on.

    Args:
        name: In reports; each node of a plan has another one.
        role: Roles that it plays.
        address: Data address that it gives to its peers; empty lets the node find it out.
        reach: Words in front of a command that carry it there (`ssh -o BatchMode=yes HOST`, `kubectl exec -i
            POD --`); standard input and output must pass. Empty for this machine.
        python: Interpreter there that has this project.
    """

    name: str
    role: NodeRole = "serve+train"
    address: str = ""
    reach: tuple[str, ...] = ()
    python: str = sys.executable


def address_towards(host: str) -> str:
    """Address of this machine from which `host` is reached; empty if there is no way there.

    MOONCAKE_LOCAL_HOSTNAME, which the store's clients obey too, names another one. Nothing is sent:
    connecting a datagram socket only asks the routing table.
    """
    named = os.environ.get("MOONCAKE_LOCAL_HOSTNAME")
    if named:
        return named
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(place)
            return str(probe.getsockname()[0])
    except OSError:
        return ""
