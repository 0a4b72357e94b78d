"""Command lines of the trainer: one process, or torchrun and a process for each rank."""

from __future__ import annotations

import sys
from pathlib import Path

from profiles.training import Scale
from tasks.errors import StageInputError
from tasks.stage import sha256_text


def trainer_argv(scale: Scale, config: Path) -> tuple[str, ...]:
    """Command line of the trainer: one process, or torchrun where there are several ranks.

    Raises:
        StageInputError: The profile asks for nodes on which nothing can be started.
    """
    words = ("tasks.train.run", str(config))
    if scale.nodes > 1:
        raise StageInputError(
            f"train.scale.nodes is {scale.nodes}, but the processes of a run start on this machine alone",
            where="train.scale.nodes",
            hint="set it to 1; train.scale.ranks spreads training over the GPUs of one node",
        )
    if scale.ranks == 1:
        return (sys.executable, "-m", *words)
    return torchrun_argv(scale, sha256_text(str(config))[:16], words)


def torchrun_argv(scale: Scale, run_id: str, words: tuple[str, ...], node: int = 0) -> tuple[str, ...]:
    """Command line that starts the ranks of one node.

    Args:
        run_id: The same on all nodes, and no other run's.
        words: Module of a rank, and its arguments.
        node: Number of the node, from 0.
    """
    argv = [sys.executable, "-m", "tasks.train.torchrun", f"--nnodes={scale.nodes}"]
    argv += [f"--nproc-per-node={scale.ranks}", "--max-restarts=0", "--signals-to-handle=SIGQUIT"]
    if scale.nodes == 1:
        argv += ["--standalone", "--local-addr=127.0.0.1"]
    else:
        argv += ["--rdzv-backend=c10d", f"--rdzv-endpoint={scale.rendezvous}", f"--rdzv-id={run_id}"]
        argv += [f"--rdzv-conf=is_host={int(node == 0)}"]
    return (*argv, "-m", *words)
