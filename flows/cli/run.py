"""`retrain-dspark run`: the whole pipeline in this process."""

from __future__ import annotations

from typing import Any

import click

from flows.cli.options import load, profile_option, set_option
from profiles.load import builtin_names, load_profile, merge
from profiles.schema import Profile


@click.command("run")
@profile_option
@set_option
@click.option(
    "--pilot", is_flag=True, help="Run a small part through all stages and keep its rates for `plan`."
)
@click.option(
    "--share",
    type=click.FloatRange(0, 1, min_open=True),
    help="Part of the prompts that a pilot takes; 0.01 if not given.",
)
def command(profile: str, assignments: tuple[str, ...], pilot: bool, share: float | None) -> int:
    """Retrain, measure and publish a draft.

    Ends with 0 if the draft was promoted, 1 if it was held or a stage failed, 2 for bad input, 75 if the
    profile's budget was used (resume goes on).
    """
    loaded, overrides = load(profile, assignments)
    if share is not None and not pilot:
        raise click.UsageError("--share belongs to --pilot")
    whole = loaded.profile
    if pilot:
        overrides = merge(overrides, _pilot(whole, share))
        loaded = load_profile(whole, overrides, overrides_origin="--pilot")
    from tasks.publish.hub.token_check import check_before_run
    from tasks.run_folder import private_run_root
    from tasks.validate.inputs import check_inputs

    check_inputs(loaded.profile, private_run_root())
    check_before_run(loaded.profile.publish)
    from flows.cli.pipeline import run_pipeline

    given: Any = profile
    if profile not in builtin_names():
        given, overrides = loaded.profile, {}
    code = run_pipeline(profile=given, overrides=overrides or None)
    if pilot:
        _keep_rates(whole)
    return code


def _pilot(whole: Profile, share: float | None) -> dict[str, Any]:
    """The overlay of a pilot, said before it runs."""
    from tasks.plan.pilot import SHARE, changes, pilot_overrides
    from tasks.plan.work import planned_work

    wanted = pilot_overrides(whole, planned_work(whole), SHARE if share is None else share)
    for line in changes(whole, wanted):
        click.echo(f"pilot: {line}")
    return wanted


def _keep_rates(whole: Profile) -> None:
    """Fit the pilot that just ended, and say how to plan with it."""
    from flows.cli.pipeline import flow_run_id_holder
    from tasks.errors import UsageError
    from tasks.plan.fit import fit_run
    from tasks.plan.keep import rates_path
    from tasks.plan.rates import write_rates
    from tasks.run_folder import run_root

    run = flow_run_id_holder()()
    if run is None:
        return
    try:
        rates = fit_run(run)
    except UsageError as error:
        click.echo(f"no rates: {error.what}", err=True)
        return
    path = rates_path(run_root(), whole.name)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_rates(path, rates)
    click.echo(f"rates     {path}\nplan      retrain-dspark plan -p {whole.name} uses them")
