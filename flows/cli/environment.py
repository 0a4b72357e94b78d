"""Settings of Prefect and MLflow for the command line. Must be made before either is imported."""

from __future__ import annotations

import os

from tasks.run_folder import run_root


def prepare_environment() -> None:
    """Keep Prefect's database in the run root, send nothing to anyone, and keep its log out of the terminal.

    What the user set is left alone. Nothing is made: `--help` leaves no folder behind.
    """
    os.umask(0o077)  # databases, artifacts and logs belong to this user only, whichever library writes them
    defaults = {
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_LOGGING_LEVEL": "WARNING",  # else each new database is a page of log lines in the terminal
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
    }
    if "PREFECT_API_URL" not in os.environ and "PREFECT_HOME" not in os.environ:
        defaults["PREFECT_HOME"] = str(run_root() / ".prefect")
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def quiet_console() -> None:
    """Keep Prefect's log lines out of the terminal; they go to the run's `flow.log`."""
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
