"""A pilot: a small part of a profile's work through all six stages, to be timed. What it changes is said."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from profiles.load import merge
from profiles.schema import DOMAINS, Profile
from tasks.plan.work import Work

SHARE = 0.01
LEAST_PROMPTS = 2
"""Training prompts of a domain: with fewer there are too few steps to time one."""
SUFFIX = "-pilot"


def pilot_overrides(profile: Profile, work: Work, share: float = SHARE) -> dict[str, Any]:
    """What a pilot of this share changes, nested.

    Prompts, live questions and a limit of steps shrink; nothing that the speed of a part depends on does.
    Capture and training are timed one after the other, so they do not overlap. The draft of a pilot is no
    candidate: it has a name of its own, goes nowhere but into a folder, and cannot become the champion.

    Args:
        work: Of the profile itself.
    """
    prompts, live, train = profile.prompts, profile.evaluate.live, profile.train
    domains = len(DOMAINS)
    asked = prompts.train_per_domain or math.ceil(work.train_prompts / domains)
    measured = prompts.evaluate_per_domain or max(1, math.ceil(work.evaluate_prompts / domains))
    changed: dict[str, Any] = {
        "name": f"{profile.name[: 64 - len(SUFFIX)]}{SUFFIX}",
        "expected_minutes": None,
        "prompts": {
            "train_per_domain": min(asked, max(LEAST_PROMPTS, part_of(asked, share))),
            "evaluate_per_domain": part_of(measured, share),
        },
        "stream": {"overlap": False, "retention": "all", "window_bytes": None},
        "train": {"log_every_steps": 1},
        "evaluate": {"live": {"per_domain": part_of(live.per_domain, share)}},
        "publish": {
            "kind": "local",
            "hub": None,
            "approval": {"required": False},
            "name": f"{profile.publish.name[: 96 - len(SUFFIX)]}{SUFFIX}",
        },
    }
    if live.again_per_domain is not None:
        changed["evaluate"]["live"]["again_per_domain"] = min(
            live.again_per_domain, part_of(live.per_domain, share)
        )
    if train.max_steps:
        changed["train"]["max_steps"] = min(train.max_steps, max(10, part_of(train.max_steps, share)))
    return changed


def part_of(number: int, share: float) -> int:
    """A share of a number, rounded down so that a pilot is never larger than it says; at least 1."""
    return max(1, math.floor(round(number * share, 6)))


def changes(profile: Profile, overrides: Mapping[str, Any]) -> list[str]:
    """Lines such as `prompts.train_per_domain: 64 -> 3`, of what is really changed."""
    before = profile.model_dump(mode="json")
    after = Profile.model_validate(merge(before, overrides)).model_dump(mode="json")
    return [
        f"{name}: {_shown(old)} -> {_shown(new)}"
        for name, old, new in _differences(before, after)
    ]  # fmt: skip


def _differences(
    before: Mapping[str, Any], after: Mapping[str, Any], path: str = ""
) -> list[tuple[str, Any, Any]]:
    found: list[tuple[str, Any, Any]] = []
    for name, old in before.items():
        new, inner = after[name], f"{path}{name}"
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += _differences(old, new, f"{inner}.")
        elif old != new:
            found.append((inner, old, new))
    return found


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)
