"""A machine of the plan, and how a command gets to it."""

from __future__ import annotations

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
