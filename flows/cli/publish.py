"""`retrain-dspark publish`: decide about a finished run's draft again."""

from __future__ import annotations

import click

from flows.cli.options import set_option
from profiles.load import load_profile, parse_assignments
from tasks.run_folder import open_run, run_root


@click.command("publish")
@click.argument("run_id", metavar="RUN")
@click.option("--force", is_flag=True, help="Promote although the gate holds it; refusals stay.")
@click.option("--by", default="", metavar="NAME", help="Who forces it; needed with --force.")
@click.option("--why", default="", metavar="TEXT", help="Why; needed with --force.")
@set_option
def command(run_id: str, force: bool, by: str, why: str, assignments: tuple[str, ...]) -> int:
    """Decide about the draft of RUN again from its evaluation, and publish it. Nothing is measured anew.

    Only `publish`, `report` and `evaluate.slo` may be set. Ends with 0 if the draft was promoted, 1 if it was
    held or refused, 2 for bad input.
    """
    overrides = parse_assignments(assignments)
    run = open_run(run_root(), run_id)
    load_profile(run.profile(), overrides, overrides_origin="--set")
    from flows.cli.pipeline import PUBLISH, run_pipeline
    from flows.publish_dspark import check_request

    check_request(run_id, force, by, why, overrides)
    return run_pipeline(
        flow_name=PUBLISH, run_id=run_id, force=force, by=by, why=why, overrides=overrides or None
    )
