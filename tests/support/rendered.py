"""Command lines of vLLM inside rendered files, as the engine would get them."""

from __future__ import annotations

import re
import shlex
from typing import Any

from profiles.text import parse_source

STAND_INS = {"HEAD_ADDRESS": "192.0.2.7", "NODE_RANK": "1", "LWS_LEADER_ADDRESS": "192.0.2.7"}
STAND_INS["LWS_WORKER_INDEX"] = STAND_INS["NODE_RANK"]
_READ = {
    "slurm": re.compile(r"^(?P<twice>\0)?\$(?P<name>HEAD_ADDRESS|NODE_RANK)$"),
    "compose": re.compile(r"(?P<twice>\$\$)|\$\{(?P<name>\w+)(?::[-?][^}]*)?\}"),
    "k8s": re.compile(r"(?P<twice>\$\$\()|\$\((?P<name>\w+)\)"),
}
"""What each reader replaces: variables, and its own way to write a dollar that is none."""


def documents(text: str) -> list[dict[str, Any]]:
    """The documents of a YAML text; a key that stands twice is refused."""
    return [parse_source(part, "rendered").values for part in text.split("\n---\n")]


def command_lines(rendering: str, text: str) -> list[list[str]]:
    """Words behind `vllm serve` (or the module) of each server in a rendered file."""
    if rendering == "slurm":
        lines = [line.strip() for line in text.splitlines() if line.strip().startswith("step ")]
        return [[_filled(rendering, word) for word in shlex.split(line)[2:]] for line in lines]
    if rendering == "compose":
        (document,) = documents(text)
        services = document["services"].values()
        return [
            [*one["entrypoint"], *(_filled(rendering, word) for word in one["command"])] for one in services
        ]
    containers = _containers(documents(text))
    return [[*one["command"], *(_filled(rendering, word) for word in one["args"])] for one in containers]


def _containers(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        inner = [one for part in value.values() for one in _containers(part)]
        return [*value.get("containers", []), *inner] if "containers" in value else inner
    return [one for part in value for one in _containers(part)] if isinstance(value, list) else []


def _filled(rendering: str, word: str) -> str:
    """The word as the program gets it."""

    def read(match: re.Match[str]) -> str:
        return match["twice"][1:] if match["twice"] else STAND_INS[match["name"]]

    return _READ[rendering].sub(read, word)
