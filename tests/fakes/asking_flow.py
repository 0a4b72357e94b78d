"""The end of the pipeline as a flow of its own: ask people, then publish. `python asking_flow.py RUN`."""

from __future__ import annotations

import sys

from prefect import flow

from flows.approving import ask_people
from flows.cli.environment import prepare_environment
from flows.opening import ending, opened_run
from tasks.publish.finished import finished
from tasks.publish.task import publish


@flow
def asking(run_id: str) -> object:
    """Needs a run that is evaluated."""
    with opened_run("", None, run_id, None) as ctx:
        found = finished(ctx.run)
        values = (found.draft, found.evaluation, found.identity, found.captures)
        ask_people(ctx, *values)
        publish(ctx, *values, found.validation)
    return ending(ctx)


if __name__ == "__main__":
    prepare_environment()
    asking(sys.argv[1])
