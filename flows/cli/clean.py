"""`retrain-dspark clean`: remove old runs and end what dead runs left."""

from __future__ import annotations

import shutil
from pathlib import Path

import click
from filelock import FileLock, Timeout

from flows.finding import abandoned, is_live, runs_of
from tasks.errors import ServiceError
from tasks.run_folder import RunFolder, run_root


@click.command("clean")
@click.option("--keep", default=5, show_default=True, type=click.IntRange(min=0), help="Newest runs to keep.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
def command(keep: int, dry_run: bool) -> None:
    """Remove all but the newest runs with their captures, and end processes and MLflow runs of dead runs.

    A run that is being worked on and published drafts are never touched.
    """
    would = "would " if dry_run else ""
    root = run_root()
    for line in _repair(root, change=not dry_run):
        click.echo(f"{would}repair: {line}")
    freed = 0
    for run in list(runs_of(root))[keep:]:
        if is_live(run) or _in_use(run):
            click.echo(f"keeps {run.run_id}: it is being worked on")
            continue
        size = _bytes(run.path)
        freed += size
        click.echo(f"{would}remove {run.run_id} ({size / 2**20:.0f} MiB)")
        if not dry_run:
            shutil.rmtree(run.path)
    click.echo(f"{would}free {freed / 2**20:.0f} MiB")


def _repair(root: Path, change: bool) -> list[str]:
    """Repair with Prefect's API at hand, which is started only if there is something to tell it."""
    from flows.cli.environment import quiet_console
    from flows.repairing import repair

    quiet_console()
    if not change or not any(abandoned(root)):
        return repair(root, change=change)
    from flows.cli.prefect_server import prefect_api, wait_until_ready

    with prefect_api() as url:
        from prefect.settings import PREFECT_API_URL, temporary_settings

        try:
            wait_until_ready(url)
        except ServiceError as error:  # the rest can be repaired; what Prefect must know waits
            click.echo(f"warning: {error}", err=True)
        with temporary_settings({PREFECT_API_URL: url}):
            return repair(root)


def _in_use(run: RunFolder) -> bool:
    lock = FileLock(run.path / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    lock.release()
    return False


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
