"""`retrain-dspark run`: the whole pipeline in this process."""

from __future__ import annotations

from typing import Any

import click

from flows.cli.options import load, profile_option, set_option
from profiles.load import builtin_names


@click.command("run")
@profile_option
@set_option
def command(profile: str, assignments: tuple[str, ...]) -> int:
    """Retrain, measure and publish a draft.

    Ends with 0 if the draft was promoted, 1 if it was held or a stage failed, 2 for bad input.
    """
    loaded, overrides = load(profile, assignments)
    from tasks.publish.hub.token_check import check_before_run
    from tasks.run_folder import private_run_root
    from tasks.validate.inputs import check_inputs

    check_inputs(loaded.profile, private_run_root())
    check_before_run(loaded.profile.publish)
    from flows.cli.pipeline import run_pipeline

    given: Any = profile
    if profile not in builtin_names():
        given, overrides = loaded.profile, {}
    return run_pipeline(profile=given, overrides=overrides or None)
