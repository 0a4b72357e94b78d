"""Where processes of a role are reached: their address, and ports that are free there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from profiles.schema import Profile
from tasks.processes.ports import free_port, require_free


class Place(Protocol):
    """The first node of a role."""

    @property
    def profile(self) -> Profile:
        """The run's profile with the addresses that this role's processes have there."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the role's nodes, the first one first."""

    def port(self, host: str, wanted: int = 0, field: str = "") -> int:
        """A port that is free on `host`: the wanted one, or any for 0.

        Args:
            field: Profile field that names the wanted port, for the message.

        Raises:
            PortInUse: The wanted one belongs to another program.
            OSError: `host` is no address of that machine.
        """


@dataclass(frozen=True)
class LocalPlace:
    """This machine."""

    profile: Profile
    nodes: tuple[str, ...] = ("localhost",)

    def port(self, host: str, wanted: int = 0, field: str = "") -> int:
        if not wanted:
            return free_port(host)
        require_free(host, wanted, field)
        return wanted
