"""`retrain-dspark resume`: go on with a run."""

from __future__ import annotations

import click

from flows.cli.options import set_option
from flows.measuring import EVALUATES
from profiles.load import load_profile, parse_assignments
from profiles.schema import Profile
from tasks.run_folder import RunFolder, open_run, run_root
from tasks.stage import fingerprint
from tasks.stages import STAGE_NAMES, VALIDATE


def checked(run: RunFolder, profile: Profile) -> bool:
    """True if the run's machine has been checked for this profile: its validate stage will be reused."""
    return run.stage(VALIDATE).load(fingerprint(VALIDATE, profile, {}))[0] is not None


@click.command("resume")
@click.argument("run_id", metavar="RUN")
@click.option(
    "--from", "from_stage", type=click.Choice(STAGE_NAMES), help="Run this stage and those after it again."
)
@set_option
def command(run_id: str, from_stage: str | None, assignments: tuple[str, ...]) -> int:
    """Go on with RUN: stages whose result is still valid are reused, and it says why another runs again."""
    overrides = parse_assignments(assignments)
    run = open_run(run_root(), run_id)
    measures = EVALUATES in run.facts()
    profile = load_profile(run.profile(), overrides, overrides_origin="--set").profile
    from tasks.validate.inputs import check_inputs

    if not (measures and "arms" in run.facts()[EVALUATES]):
        machine = from_stage == VALIDATE.name or not checked(run, profile)
        check_inputs(profile, run_root(), machine=machine, trains=not measures)
    from flows.cli.pipeline import EVALUATE, RETRAIN, run_pipeline

    flow = EVALUATE if measures else RETRAIN
    return run_pipeline(flow_name=flow, run_id=run_id, from_stage=from_stage, overrides=overrides or None)
