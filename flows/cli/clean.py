"""`retrain-dspark clean`: remove old runs and end what dead runs left."""

from __future__ import annotations

import shutil
from pathlib import Path

import click
from filelock import FileLock, Timeout

from flows.finding import is_live, runs_of
from tasks.run_folder import RunFolder, run_root


@click.command("clean")
@click.option("--keep", default=5, show_default=True, type=click.IntRange(min=0), help="Newest runs to keep.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
def command(keep: int, dry_run: bool) -> None:
    """Remove all but the newest runs with their captures, and end processes and MLflow runs of dead runs.

    A run that is being worked on and published drafts are never touched.
    """
    from flows.cli.environment import quiet_console
    from flows.repairing import repair

    quiet_console()
    would = "would " if dry_run else ""
    root = run_root()
    for line in repair(root, change=not dry_run):
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
