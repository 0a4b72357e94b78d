"""`retrain-dspark` as it is, whose every stage repeats a secret of the environment as a library might.

Environment: LEAK names the variable. What is leaked, and where, stands in `tests/support/leaking.py`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def leaky(work: Callable[..., Any]) -> Callable[..., Any]:
    """A stage's execution, preceded by the leak."""
    from leaking import say_secrets

    def executed(*arguments: Any, **named: Any) -> Any:
        say_secrets(os.environ[os.environ["LEAK"]])
        return work(*arguments, **named)

    return executed


def install() -> None:
    """Put the leak before the work of each stage."""
    for stage in ("validate", "serve", "stream", "train", "evaluate", "publish"):
        module: Any = import_module(f"tasks.{stage}.task")
        module.execute_stage = leaky(module.execute_stage)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
    from flows.cli.environment import prepare_environment, quiet_console

    prepare_environment()
    from flows.cli.main import run_cli
    from tasks.run_folder import private_run_root

    quiet_console()
    private_run_root()  # the real command makes it before Prefect is imported
    install()
    sys.exit(run_cli(sys.argv[1:]))
