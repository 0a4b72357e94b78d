"""Which planned machine plays which role, and what a server needs to know when it spans several of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from profiles.hardware import RoleRequirements
from profiles.schema import Profile
from tasks.serve.multi_node import argv_on
from tasks.serve.options import Node

MIB = 2**20


@dataclass(frozen=True)
class Place:
    """One planned machine.

    Args:
        gpus: GPUs of it; 0 in a profile without GPUs, None where the profile does not say.
        rank: Number among the machines of its role.
        address: At which others reach it; empty where the profile does not name it.
    """

    name: str
    roles: tuple[str, ...]
    gpus: int | None
    rank: int
    address: str = ""


@dataclass(frozen=True)
class Topology:
    """All planned machines."""

    serve: tuple[Place, ...]
    train: tuple[Place, ...]

    @property
    def places(self) -> tuple[Place, ...]:
        """Each machine once."""
        return tuple(dict.fromkeys((*self.serve, *self.train)))


def planned_topology(profile: Profile) -> Topology:
    """The machines that the profile asks for: the same ones for both roles, or each role's own."""
    roles = profile.hardware.roles
    head = profile.store.host
    if roles.colocated:
        both = _places(profile, "node", ("serve", "train"), roles.serve, head)
        return Topology(both, both)
    serve = _places(profile, "serve", ("serve",), roles.serve, head)
    return Topology(serve, _places(profile, "train", ("train",), roles.train, ""))


def _places(
    profile: Profile, word: str, roles: tuple[str, ...], wanted: RoleRequirements, head: str
) -> tuple[Place, ...]:
    gpus = 0 if profile.hardware.mode == "none" else wanted.gpus_per_node
    return tuple(
        Place(f"{word}-{rank}", roles, gpus, rank, "" if rank else head) for rank in range(wanted.nodes)
    )


def spanning_argv(argv: tuple[str, ...], places: tuple[Place, ...], rank: int) -> tuple[str, ...]:
    """A server's command line on the machine `rank` of several, as it will be started there."""
    return argv_on(argv, Node(rank, len(places), places[0].address))


def gpu_bytes(role: RoleRequirements) -> int | None:
    """Memory of one GPU of a role as the profile requires it."""
    return role.memory_total_mib_min * MIB if role.memory_total_mib_min else None


def nodes_for_weights(weights_bytes: float | None, role: RoleRequirements, utilisation: float) -> int | None:
    """Fewest nodes of a role whose GPUs hold the weights and more; None where a size is not known."""
    each = gpu_bytes(role)
    if weights_bytes is None or each is None or not role.gpus_per_node:
        return None
    return math.floor(weights_bytes / (each * role.gpus_per_node * utilisation)) + 1


def nodes_of_server(profile: Profile, weights_bytes: float | None) -> int:
    """Nodes that one server takes: as few as hold the weights; 1 where a size is not known."""
    hardware = profile.hardware
    if hardware.mode == "none":
        return 1
    return nodes_for_weights(weights_bytes, hardware.roles.serve, hardware.utilisation) or 1
