"""The batch script of a job, and the words of a step in it: text only, nothing is run here."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from profiles.launching import Slurm
from profiles.schema import Profile
from tasks.processes.slurm.phases import Group, Phase

ON_NODE = Path(__file__).with_name("on_node")
PROJECT = Path(__file__).resolve().parents[3]


def batch_script(
    profile: Profile,
    phase: Phase,
    *,
    job_name: str,
    python: str,
    heartbeat: Path,
    log: Path,
    train_nodes: Sequence[str] = (),
) -> str:
    """The script that holds the nodes of a phase while the flow lives.

    It is submitted from an environment of a few names (`commands.submit`), which is all that it exports: an
    empty export would make Slurm run the user's login shell on the node to find one. After preemption it does
    not come back: the flow asks for new nodes when it resumes.

    Args:
        python: Interpreter of the nodes.
        heartbeat: File that the flow keeps changing.
        log: Where Slurm writes what the script says.
        train_nodes: Nodes that training must have, since an earlier job left its hidden-state log there.
    """
    slurm = profile.launch.slurm
    first = (
        f"--job-name={job_name}",
        "--export=ALL",
        f'--output="{log}"',
        "--open-mode=append",
        "--no-requeue",
    )
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in first)]
    for place, group in enumerate(phase.groups):
        lines += ["#SBATCH hetjob"] if place else []
        pinned = train_nodes if "train" in group.roles else ()
        lines += [f"#SBATCH {option}" for option in group_options(slurm, group, pinned)]
    silence = f"{slurm.driver_silence_s:g}"
    hold = (python, "-I", "-S", str(ON_NODE / "hold.py"), str(heartbeat), silence)
    return "\n".join([*lines, "", f"exec {shlex.join(hold)}", ""])


def group_options(slurm: Slurm, group: Group, pinned: Sequence[str] = ()) -> list[str]:
    """Options of one component; Slurm does not hand them from one component to the next."""
    given = {
        "account": slurm.account,
        "partition": slurm.partition,
        "qos": slurm.qos,
        "reservation": slurm.reservation,
        "constraint": f'"{slurm.constraint}"' if slurm.constraint else "",
        "exclude": ",".join(slurm.exclude),
        "nodelist": ",".join(pinned),
        "time": str(slurm.time_limit_minutes),
        "nodes": str(group.nodes),
        "ntasks-per-node": "1",
        "gpus-per-node": str(group.gpus_per_node) if group.gpus_per_node else "",
    }
    return [
        *(f"--{name}={value}" for name, value in given.items() if value),
        "--exclusive",
        "--mem=0",
        *slurm.options,
    ]


def step_words(
    slurm: Slurm,
    *,
    job: str,
    group: int | None,
    nodes: Sequence[str],
    name: str,
    gpus_per_node: int | None = None,
    container: bool = False,
    mounts: Sequence[Path] = (),
) -> tuple[str, ...]:
    """`srun` and its options for one task on each of `nodes`, beside the other steps of the job.

    Args:
        group: Component that the nodes belong to; None where the job has one only.
        container: Run it in the profile's image.
        mounts: Folders that it needs there.
    """
    words = ["srun", f"--jobid={job}", *(() if group is None else (f"--het-group={group}",))]
    words += [f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1"]
    words += [f"--nodelist={','.join(nodes)}", f"--job-name={name}", "--export=NIL", "--input=none"]
    words += ["--overlap", "--mem=0", "--cpu-bind=none", "--unbuffered", "--kill-on-bad-exit=0", "--mpi=none"]
    words += [f"--gpus-per-node={gpus_per_node}"] if gpus_per_node else []
    if container and slurm.container_image:
        mounted = [*(f"{path}:{path}" for path in mounts), *slurm.container_mounts]
        words += [f"--container-image={slurm.container_image}", f"--container-mounts={','.join(mounted)}"]
    return tuple(words)


def prepared(slurm: Slurm, words: Sequence[str]) -> tuple[str, ...]:
    """A command after the set-up lines of the profile; as it is where there are none."""
    if not slurm.setup:
        return tuple(words)
    script = "\n".join(["set -e", *slurm.setup, 'exec "$@"'])
    return ("/bin/bash", "-c", script, "bash", *words)
