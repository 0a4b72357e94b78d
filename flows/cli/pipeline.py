"""Runs a flow in this process: display, signals, closing lines, exit code."""

from __future__ import annotations

import importlib
import json
import logging
import os
import signal
import sys
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import Any, NoReturn

import click
from rich.console import Console

from flows.cli.environment import quiet_console
from flows.cli.main import EXIT_TERMINATED, show_error, show_unexpected
from flows.cli.prefect_server import prefect_api, send_what_waits, wait_until_ready
from tasks.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, RetrainError
from tasks.report.progress import LineProgress, TerminalProgress, show_on
from tasks.run_folder import RunFolder, private_run_root, run_root

RETRAIN = "retrain_dspark"
EVALUATE = "evaluate_dspark"
PUBLISH = "publish_dspark"


def run_pipeline(flow_name: str = RETRAIN, as_json: bool = False, **parameters: Any) -> int:
    """Run a flow with these parameters and return the exit code.

    Args:
        flow_name: `retrain_dspark`, `evaluate_dspark` or `publish_dspark`, the name of its module too.
        as_json: Standard output gets the result as one JSON object, and nothing else.
    """
    private_run_root()
    quiet_console()
    previous = signal.signal(signal.SIGTERM, _terminated)
    try:
        users_server = bool(os.environ.get("PREFECT_API_URL"))
        with prefect_api() as url:
            return _run_with(url, users_server, flow_name, as_json, parameters)
    finally:
        signal.signal(signal.SIGTERM, previous)


def _run_with(url: str, users_server: bool, flow_name: str, as_json: bool, parameters: dict[str, Any]) -> int:
    """Run the flow with Prefect's API at `url`; only a server of the user's has pages to show later."""
    from prefect.settings import PREFECT_API_URL, PREFECT_UI_URL, temporary_settings

    flow = getattr(importlib.import_module(f"flows.{flow_name}"), flow_name)
    wait_until_ready(url)
    with temporary_settings({PREFECT_API_URL: url}):
        page = PREFECT_UI_URL.value() if users_server else None
        try:
            return _run(flow, parameters, page or "", as_json)
        finally:
            send_what_waits()


def _run(flow: Any, parameters: dict[str, Any], prefect_page: str, as_json: bool) -> int:
    from prefect.exceptions import TerminationSignal

    name = flow_run_id_holder()
    try:
        with _display(as_json):
            state = flow(**parameters, return_state=True)
    except (KeyboardInterrupt, TerminationSignal, SystemExit) as interruption:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        run = name()
        _mark_cancelled(run)
        _print_end(run, prefect_page, as_json)
        return EXIT_INTERRUPTED if isinstance(interruption, KeyboardInterrupt) else EXIT_TERMINATED
    return _report(name(), state, prefect_page, as_json)


def flow_run_id_holder() -> Any:
    """A function that finds the newest run folder which this process opened."""
    from flows.finding import runs_of
    from tasks.tracking import owner_tag

    owner = owner_tag()

    def find() -> RunFolder | None:
        return next((run for run in runs_of(run_root()) if run.facts().get("owner") == owner), None)

    return find


def _report(run: RunFolder | None, state: Any, prefect_page: str, as_json: bool = False) -> int:
    """Closing lines and the exit code of a flow run that ended by itself; an error is said once."""
    if not state.is_completed():
        error = state.result(raise_on_failure=False)
        _print_end(run, prefect_page, as_json, error_follows=True)
        if isinstance(error, RetrainError):
            return show_error(error)
        if isinstance(error, Exception):
            return show_unexpected(error)
        click.echo(f"error: {state.message}", err=True)
        return EXIT_FAILED
    _print_end(run, prefect_page, as_json)
    return EXIT_FAILED if state.name == "Held" else EXIT_DONE


def _print_end(run: RunFolder | None, prefect_page: str, as_json: bool, error_follows: bool = False) -> None:
    if as_json:
        _print_json(run)
    else:
        _print_closing(run, prefect_page, error_follows)


def _print_closing(run: RunFolder | None, prefect_page: str, error_follows: bool = False) -> None:
    from tasks.report.closing import closing_lines
    from tasks.report.summary import read_summary

    if run is not None:
        # click removes the colour again where output is not a terminal.
        colour = "NO_COLOR" not in os.environ
        lines = closing_lines(read_summary(run), run, colour, prefect_page, error_follows)
        click.echo("\n".join(lines))


def _print_json(run: RunFolder | None) -> None:
    """The run's summary, and its evaluation in full if it came to one."""
    from tasks.report.record import read_run
    from tasks.report.summary import read_summary

    if run is not None:
        evaluation = read_run(run).evaluation
        full = evaluation.model_dump(mode="json") if evaluation is not None else None
        click.echo(json.dumps({"summary": read_summary(run), "evaluation": full}, indent=2))


def _mark_cancelled(run: RunFolder | None) -> None:
    """Prefect takes an interrupted process for a crash; the user knows that it was a cancellation."""
    from uuid import UUID

    from prefect.client.orchestration import get_client
    from prefect.states import Cancelled

    if run is None:
        return
    try:
        with get_client(sync_client=True) as client:
            state: Any = Cancelled(message="Interrupted from the command line.")
            client.set_flow_run_state(UUID(run.facts()["flow_run_id"]), state, force=True)
    except Exception as error:
        logging.getLogger("retrain_dspark").warning("Prefect was not told of the cancellation: %s", error)


def _display(as_json: bool = False) -> AbstractContextManager[Any]:
    """A live display in a terminal, lines elsewhere; beside a JSON result, lines on standard error."""
    if as_json:
        show_on(LineProgress(_print_error_line))
        return nullcontext()
    console = Console(stderr=False)
    if console.is_terminal and sys.stdout.isatty():
        progress = TerminalProgress(console)
        show_on(progress)
        return progress
    show_on(LineProgress(_print_line))
    return nullcontext()


def _print_line(line: str) -> None:
    print(line, flush=True)


def _print_error_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(EXIT_TERMINATED)
