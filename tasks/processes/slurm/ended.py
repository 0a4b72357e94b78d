"""Why nodes are not ours any more, said with their names, from Slurm's own states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tasks.errors import AllocationEnded, NodeLost, RetrainError
from tasks.processes.slurm.commands import Component

_HOW = {
    "PREEMPTED": ("was preempted by a job of higher priority", "resume asks for new nodes"),
    "TIMEOUT": ("reached its time limit", "resume goes on; raise launch.slurm.time_limit_minutes"),
    "DEADLINE": ("reached its deadline", "resume asks for new nodes"),
    "CANCELLED": ("was cancelled", "resume asks for new nodes"),
    "OUT_OF_MEMORY": ("ran out of memory", "see the log of the process; ask for nodes with more memory"),
    "BOOT_FAIL": ("failed as a node did not boot", "exclude that node in launch.slurm.exclude, then resume"),
    "REVOKED": ("was revoked", "resume asks for new nodes"),
    "SUSPENDED": ("was suspended", "resume asks for new nodes"),
    "STOPPED": ("was stopped", "resume asks for new nodes"),
}  # fmt: skip


def fault_of(job: str, found: Sequence[Component], nodes: Mapping[int, Sequence[str]]) -> RetrainError | None:
    """The error that a job's state means; None while all its components run.

    Args:
        found: The components that are still wanted.
        nodes: Offset -> names of the nodes that the component had.
    """
    names = shown([name for group in nodes.values() for name in group])
    if not found:
        return AllocationEnded(f"Slurm does not know job {job} on {names} any more", where=names)
    # A component that follows another one's end only says CANCELLED.
    worst = min(found, key=lambda one: (one.runs, one.state in ("CANCELLED", "COMPLETED")))
    if worst.runs:
        return None
    where = shown(nodes.get(worst.offset, ())) or names
    if worst.waits or worst.restarts:
        return AllocationEnded(
            f"Slurm took the nodes {names} of job {job} back and put it into the queue again "
            f"({worst.reason or worst.state})",
            where=names,
            hint="resume asks for new nodes",
        )
    if worst.state == "NODE_FAIL" or worst.reason == "NodeDown":
        return lost(where, f"Slurm ended job {job}: {worst.state} {worst.reason}".rstrip())
    how, hint = _HOW.get(worst.state, (f"ended ({worst.state} {worst.reason})".replace(" )", ")"), ""))
    return AllocationEnded(
        f"job {job} on {names} {how}", where=names, hint=hint or "see logs/ of the run, slurm-*.log"
    )


def lost(node: str, how: str) -> NodeLost:
    """The error of a node that failed; it is offered for exclusion."""
    return NodeLost(
        f"node {node} is lost: {how}",
        where=node,
        hint=f"resume on other nodes: --set 'launch.slurm.exclude=[\"{node}\"]'",
    )


def shown(nodes: Sequence[str]) -> str:
    return ", ".join(nodes)
