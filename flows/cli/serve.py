"""`retrain-dspark serve`: serve a published draft with its target."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import click

from tasks.errors import UsageError
from tasks.run_folder import run_root


@click.command("serve")
@click.argument("draft", metavar="[FOLDER]", required=False, type=click.Path(path_type=Path))
@click.option("--print", "only_print", is_flag=True, help="Print the command instead of running it.")
def command(draft: Path | None, only_print: bool) -> None:
    """Serve the published draft in FOLDER, or the newest one, together with its target."""
    folder = draft or _newest()
    program = folder / "serve.sh"
    try:
        json.loads((folder / "serve.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise UsageError(
            "there is no published draft in this folder: serve.json is missing or not JSON",
            where=str(folder),
            hint="give a version folder, e.g. runs/published/NAME/v0001",
        ) from None
    if only_print:
        click.echo(f"sh {shlex.quote(str(program))}")
        return
    os.execvp("sh", ("sh", str(program)))


def _newest() -> Path:
    found = sorted(run_root().glob("published/*/v*/serve.json"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise UsageError(
            "nothing was published yet",
            where=str(run_root() / "published"),
            hint="retrain-dspark run -p laptop",
        )
    return found[-1].parent
