"""Which nodes a process needs, and together with which others: what `launch.slurm.allocation` means."""

from __future__ import annotations

from dataclasses import dataclass

from profiles.schema import Profile


@dataclass(frozen=True)
class Group:
    """Nodes of one component of a job.

    Args:
        roles: What they do: `serve`, `train`, or both where the profile's roles are colocated.
        nodes: How many.
        gpus_per_node: None asks for none.
    """

    roles: tuple[str, ...]
    nodes: int
    gpus_per_node: int | None = None


@dataclass(frozen=True)
class Phase:
    """One job: its name in the run, and its components; the first one leads and cannot go before others."""

    name: str
    groups: tuple[Group, ...]

    def group_of(self, role: str) -> int:
        """Index of the component that plays `role`; -1 if none does."""
        return next((place for place, group in enumerate(self.groups) if role in group.roles), -1)


def phase_for(profile: Profile, stage: str, role: str) -> Phase:
    """The job that a process of this stage and role belongs to.

    Training leads where both roles are in one job: serving nodes can then go back alone, while the trainer
    stays on its node, which may hold the hidden-state log on its own disk.
    """
    if profile.launch.slurm.allocation == "hold":
        return Phase("run", _groups(profile, ("train", "serve")))
    if stage == "evaluate" and role == "serve":
        return Phase("evaluate", _groups(profile, ("serve",)))
    if stage in ("train", "evaluate"):
        return Phase("train", _groups(profile, ("train",)))
    return Phase("capture", _groups(profile, ("train", "serve")))


def _groups(profile: Profile, wanted: tuple[str, ...]) -> tuple[Group, ...]:
    roles = profile.hardware.roles
    if roles.colocated:
        return (Group(("serve", "train"), roles.serve.nodes, roles.serve.gpus_per_node),)
    of = {"serve": roles.serve, "train": roles.train}
    return tuple(Group((role,), of[role].nodes, of[role].gpus_per_node) for role in wanted)
