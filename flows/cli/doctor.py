"""`retrain-dspark doctor`: the checks of the validate stage, alone."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from flows.cli.options import load, profile_option, set_option
from tasks.errors import EXIT_DONE, EXIT_FAILED


@click.command("doctor")
@profile_option
@set_option
@click.option("--json", "as_json", is_flag=True, help="Print the whole report as JSON.")
def command(profile: str, assignments: tuple[str, ...], as_json: bool) -> int:
    """Check this machine for a profile; nothing is left running."""
    loaded, _ = load(profile, assignments)
    from tasks.processes.launcher import launcher_for
    from tasks.processes.registry import reap
    from tasks.report.progress import SilentProgress
    from tasks.run_folder import create_run
    from tasks.validate.core import validate

    with tempfile.TemporaryDirectory(prefix="retrain-dspark-doctor-") as root:
        run = create_run(Path(root), "doctor", loaded.profile)
        folder = run.path / "01-validate"
        folder.mkdir()
        try:
            report = validate(loaded.profile, run, folder, launcher_for(loaded.profile), SilentProgress())
        finally:
            reap(run.services)
    if as_json:
        click.echo(report.model_dump_json(indent=2))
        return EXIT_FAILED if report.worst == "fail" else EXIT_DONE
    ids = [check.id for check in report.checks]
    for check in report.checks:
        name = f"{check.id} ({check.subject})" if ids.count(check.id) > 1 else check.id
        click.echo(
            f"{check.status:<5} {name:<24} {check.observed}{': ' * bool(check.message)}{check.message}"
        )
        if check.remedy and check.status in ("fail", "warn"):
            click.echo(f"      to do: {check.remedy}")
    return EXIT_FAILED if report.worst == "fail" else EXIT_DONE
