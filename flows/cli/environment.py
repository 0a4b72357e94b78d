"""Settings of Prefect and MLflow for the command line. Must be made before either is imported."""

from __future__ import annotations

import os

from tasks.run_folder import run_root


def prepare_environment() -> None:
    """Keep Prefect's database in the run root, send nothing to anyone, and keep its log out of the terminal.

    What the user set is left alone.
    """
    defaults = {
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
    }
    if "PREFECT_API_URL" not in os.environ and "PREFECT_HOME" not in os.environ:
        home = run_root() / ".prefect"
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        defaults["PREFECT_HOME"] = str(home)
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def quiet_console() -> None:
    """Keep Prefect's log lines out of the terminal; they go to the run's `flow.log`."""
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
