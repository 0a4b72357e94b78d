"""`retrain-dspark plan`: what a run would do."""

from __future__ import annotations

import click

from flows.cli.options import load, profile_option, set_option


@click.command("plan")
@profile_option
@set_option
def command(profile: str, assignments: tuple[str, ...]) -> None:
    """Show processes, sizes, disk and expected minutes; starts nothing."""
    loaded, _ = load(profile, assignments)
    from tasks.plan.core import plan_lines

    for line in plan_lines(loaded.profile):
        click.echo(line)
    for field, origin in loaded.origins.items():
        if origin == "--set":
            click.echo(f"{field}: from --set")
