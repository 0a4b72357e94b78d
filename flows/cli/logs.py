"""`retrain-dspark logs`: the logs of a run, also while they grow."""

from __future__ import annotations

import time
from pathlib import Path

import click

from flows.finding import is_live
from tasks.errors import UsageError
from tasks.run_folder import RunFolder, open_run, run_root
from tasks.stages import STAGE_NAMES

FLOW_LOG = "flow.log"
_STAGE_OF = {
    "store-check": "validate",
    "store": "serve",
    "target": "serve",
    "capture": "stream",
    "trainer": "train",
    "replay": "evaluate",
    "arm": "evaluate",
}


@click.command("logs")
@click.argument("run_id", metavar="RUN")
@click.argument("stage", metavar="[STAGE]", required=False, type=click.Choice(STAGE_NAMES))
@click.option("-f", "--follow", is_flag=True, help="Go on until the run ends.")
@click.option("-n", "--lines", default=40, show_default=True, help="Last lines of each log.")
def command(run_id: str, stage: str | None, follow: bool, lines: int) -> None:
    """Show the logs of RUN, or of the processes of one STAGE."""
    run = open_run(run_root(), run_id)
    offsets: dict[Path, int] = {}
    for path in log_files(run, stage):
        text = path.read_text(encoding="utf-8", errors="replace").splitlines()
        click.echo(f"==> {path.name} <==")
        click.echo("\n".join(text[-lines:]))
        offsets[path] = path.stat().st_size
    if not offsets and not follow:
        known = ", ".join(path.name for path in log_files(run, None)) or "none yet"
        raise UsageError(f"run {run_id} has no log of '{stage}'", where=str(run.logs), hint=f"logs: {known}")
    while follow:
        live = is_live(run)  # asked first: what is written until then is still shown
        _print_new(run, stage, offsets)
        if not live:
            return
        time.sleep(0.5)


def log_files(run: RunFolder, stage: str | None) -> list[Path]:
    """Log files of the run, oldest name first; with a stage those of its processes, else the flow's own."""
    files = sorted(run.logs.glob("*.log"))
    if stage is None:
        return files
    own = [path for path in files if _stage_of(path.stem) == stage]
    return own or [path for path in files if path.name == FLOW_LOG]


def _stage_of(name: str) -> str:
    return next((stage for start, stage in _STAGE_OF.items() if name.startswith(start)), "")


def _print_new(run: RunFolder, stage: str | None, offsets: dict[Path, int]) -> None:
    for path in log_files(run, stage):
        start = offsets.get(path, 0)
        size = path.stat().st_size
        if size > start:
            with open(path, "rb") as stream:
                stream.seek(start)
                click.echo(stream.read(size - start).decode("utf-8", errors="replace"), nl=False)
            offsets[path] = size
