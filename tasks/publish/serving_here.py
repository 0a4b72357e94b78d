"""A recipe's server on this machine: its command line and environment."""

from __future__ import annotations

import sys

from tasks.errors import UsageError
from tasks.publish.serving_recipe import MODULE, Recipe
from tasks.serve.cpu import intel_openmp, interpreter_environment, usable_cores


def here(recipe: Recipe, host: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Command line and environment of the server on this machine, started with this Python.

    Raises:
        UsageError: The recipe needs several nodes.
    """
    if recipe.nodes > 1:
        raise UsageError(
            f"{recipe.source} is served on {recipe.nodes} nodes, and this is one",
            where="deploy.nodes",
            hint=f"retrain-dspark serve {recipe.source} --render slurm   (or compose, k8s); "
            "--set deploy.nodes=1 where one node is large enough",
        )
    words = recipe.words(host=host, draft=recipe.draft.here())
    argv = (sys.executable, "-m", MODULE, "--model", recipe.target.here(), *words)
    environment = dict(recipe.environment)
    if recipe.cpu:
        environment.setdefault("OMP_NUM_THREADS", str(usable_cores()))
        if openmp := intel_openmp():
            environment["LD_PRELOAD"] = str(openmp)
    if recipe.interpreter:
        environment |= interpreter_environment()
    return argv, environment
