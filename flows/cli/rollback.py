"""`retrain-dspark rollback`: let the champion be the version before."""

from __future__ import annotations

import click

from flows.cli.champions import hub_of, place_of, say_moved
from tasks.publish.moving import roll_back


@click.command("rollback")
@click.argument("name", metavar="[DRAFT]", required=False)
@click.option("--to", metavar="VERSION", help="Version to go back to.  [default: the champion before]")
@click.option("--by", default="", metavar="NAME", help="Who takes it back; kept beside the versions.")
@click.option("--why", default="", metavar="TEXT", help="Why; kept beside the versions.")
def command(name: str | None, to: str | None, by: str, why: str) -> int:
    """Let the champion of DRAFT (its name or folder) be the version before, or the one that --to names.

    The local pointer, the registry's aliases and the hub follow; then it says what servers must load. With
    the champion as --to only what an earlier attempt left undone is done. Ends with 0, 1 if a version is
    damaged or the hub does not follow, 2 for bad input.
    """
    place = place_of(name)
    return say_moved(place, roll_back(place, to, by, why, hub_of(place)), "rolled back")
