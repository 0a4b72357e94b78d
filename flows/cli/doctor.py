"""`retrain-dspark doctor`: the checks of the validate stage, alone."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flows.cli.options import load, profile_option, set_option
from tasks.errors import EXIT_DONE, EXIT_FAILED
from tasks.processes.nodes import NodeRole

if TYPE_CHECKING:
    from profiles.schema import Profile
    from tasks.processes.launcher import Launcher
    from tasks.validate.models import ValidationReport

ROLES: dict[str, NodeRole] = {"serve": "serve", "train": "train", "both": "serve+train"}


@click.command("doctor")
@profile_option
@set_option
@click.option(
    "--facts",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE...",
    help="Judge recorded facts instead of this machine: one file or several, for a plan of several nodes.",
)
@click.option(
    "--record",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write this machine's facts to FILE, its names, addresses and serial numbers replaced.",
)
@click.option(
    "--salt",
    metavar="WORD",
    help="With --record: the same word on every node keeps equal what nodes share, such as their NVLink "
    "domain. Without it each record has names of its own.",
)
@click.option(
    "--role",
    type=click.Choice(tuple(ROLES)),
    help="Role of this machine in the plan; without it the profile's launcher says which nodes there are.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the whole report as JSON.")
@click.argument("more", nargs=-1, type=click.Path(path_type=Path), metavar="")
def command(
    profile: str,
    assignments: tuple[str, ...],
    facts: tuple[Path, ...],
    record: Path | None,
    salt: str | None,
    role: str | None,
    as_json: bool,
    more: tuple[Path, ...],
) -> int:
    """Check this machine, or recorded facts, for a profile; nothing is left running.

    Ends with 0 if no check fails, 1 if one does, 2 for bad input.
    """
    _refuse_mixtures(facts, record, salt, role, more)
    loaded, _ = load(profile, assignments)
    from tasks.validate.recording import check_place, read_records, write_records

    if facts:
        from tasks.validate.core import judge_recorded

        nodes = read_records((*facts, *more))
        report = judge_recorded(loaded.profile, nodes)
        whose = "recorded facts of " + ("1 node" if len(nodes) == 1 else f"{len(nodes)} nodes")
    else:
        if record:
            check_place(record)
        report = _check(loaded.profile, role)
        whose = "this machine" if len(report.records) == 1 else f"{len(report.records)} nodes"
        if record:
            write_records(record, report, salt)
    _show(report, f"{whose} for the profile {loaded.profile.name}", as_json)
    return EXIT_FAILED if report.worst == "fail" else EXIT_DONE


def _refuse_mixtures(
    facts: tuple[Path, ...], record: Path | None, salt: str | None, role: str | None, more: tuple[Path, ...]
) -> None:
    """Options that say nothing together are a mistake, not a matter of taste."""
    if more and not facts:
        raise click.UsageError(f"unexpected argument '{more[0]}'; files of facts follow --facts")
    if facts and (record or role):
        raise click.UsageError("--facts reads no machine: leave out --record and --role")
    if salt is not None and record is None:
        raise click.UsageError("--salt belongs to --record")


def _check(profile: Profile, role: str | None) -> ValidationReport:
    """Run the stage in a folder that is removed again; the disk of the real run root is measured."""
    from flows.cli.doctor_notes import Notes
    from tasks.processes.registry import reap
    from tasks.run_folder import create_run, run_root
    from tasks.validate.core import validate

    with tempfile.TemporaryDirectory(prefix="retrain-dspark-doctor-") as root:
        run = create_run(Path(root), "doctor", profile)
        folder = run.path / "01-validate"
        folder.mkdir()
        launcher, notes = _launcher(profile, role), Notes()
        try:
            return validate(profile, run, folder, launcher, notes, root=run_root())
        finally:
            notes.clear()
            reap(run.services)


def _launcher(profile: Profile, role: str | None) -> Launcher:
    from tasks.processes.launcher import LocalLauncher, launcher_for

    return launcher_for(profile) if role is None else LocalLauncher(ROLES[role])


def _show(report: ValidationReport, about: str, as_json: bool) -> None:
    if as_json:
        click.echo(report.model_dump_json(indent=2))
        return
    from flows.cli.doctor_text import report_text, screen

    click.echo(report_text(report, about, where := screen()), color=where.colour)
