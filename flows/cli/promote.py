"""`retrain-dspark promote`: a person's word for a run's draft, or for a version that is there."""

from __future__ import annotations

import re

import click

from flows.cli.champions import hub_of, place_of, say_moved
from tasks.errors import UsageError
from tasks.publish.moving import promote_version
from tasks.publish.words import new_word
from tasks.run_folder import RunFolder, open_run, run_root

_VERSION = re.compile(r"^v\d{4,}$")


@click.command("promote")
@click.argument("what", metavar="RUN|VERSION")
@click.option("--by", default="", metavar="NAME", help="Who agrees; kept with the decision.")
@click.option("--why", default="", metavar="TEXT", help="Why; kept with the decision.")
@click.option("--force", is_flag=True, help="Promote a run's draft although the gate holds it.")
@click.option("--name", metavar="DRAFT", help="Draft of a VERSION: its name or folder, if there are several.")
def command(what: str, by: str, why: str, force: bool, name: str | None) -> int:
    """Agree to the draft of RUN, or let VERSION (e.g. v0002) be the champion.

    A run that is paused for a person's word goes on. Another one is decided about again with that word: a
    draft that the gate holds stays held without --force. Ends with 0, 1 if it is held, 2 for bad input.
    """
    word = new_word("force" if force else "approval", by, why)
    if _VERSION.match(what):
        place = place_of(name)
        moved = promote_version(place, what, word.by, word.why, hub_of(place))
        return say_moved(place, moved, "promoted")
    if name is not None:
        raise UsageError(
            "--name belongs to a version, and a run has its own", where="--name", hint="leave it out"
        )
    return _agree(open_run(run_root(), what), force, by, why)


def _agree(run: RunFolder, force: bool, by: str, why: str) -> int:
    from flows.approving import answer_paused
    from flows.cli.pipeline import PUBLISH, run_pipeline
    from flows.publish_dspark import check_request

    if not force and answer_paused(run, new_word("approval", by, why)):
        click.echo(f"run {run.run_id} goes on with this word")
        return 0
    check_request(run.run_id, True, by, why, {})
    return run_pipeline(flow_name=PUBLISH, run_id=run.run_id, force=force, agree=not force, by=by, why=why)
