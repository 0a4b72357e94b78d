"""`retrain-dspark serve`: serve a published draft with its target."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from tasks.errors import UsageError
from tasks.run_folder import RunFolder, run_root


@click.command("serve")
@click.argument("draft", metavar="[FOLDER]", required=False, type=click.Path(path_type=Path))
@click.option("--target", metavar="FOLDER", help="Weights of the target. [default: those of the draft's run]")
@click.option("--port", type=click.IntRange(1, 65535), default=8000, show_default=True)
@click.option("--print", "only_print", is_flag=True, help="Print the command instead of running it.")
def command(draft: Path | None, target: str | None, port: int, only_print: bool) -> None:
    """Serve the published draft in FOLDER, or the champion that was chosen last, together with its target."""
    from tasks.publish.serving import serve_command
    from tasks.publish.verify import verify_folder

    folder = (draft or _champion()).absolute()
    settings = _settings(folder)
    verify_folder(folder)
    weights = target or os.environ.get("TARGET") or str(_target_of(folder, settings))
    if only_print:
        click.echo(serve_command(folder, Path(weights), sys.executable, port))
        return
    _become(folder / "serve.sh", weights, port)


def _become(program: Path, target: str, port: int) -> NoReturn:
    os.environ.setdefault("PYTHON", sys.executable)
    os.execvp("bash", ("bash", str(program), target, str(port)))


def _settings(folder: Path) -> dict[str, Any]:
    try:
        settings: dict[str, Any] = json.loads((folder / "serve.json").read_text(encoding="utf-8"))
        return settings
    except (OSError, ValueError):
        raise UsageError(
            "there is no published draft in this folder: serve.json is missing or not JSON",
            where=str(folder),
            hint="give a version folder, e.g. runs/published/NAME/v0001",
        ) from None


def _target_of(folder: Path, settings: dict[str, Any]) -> Path:
    """The target that the draft's run used, if the run or a built-in profile still knows it."""
    from profiles.load import builtin_names, load_profile
    from tasks.serve.target_folder import resolve_target

    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    run = RunFolder(run_root() / str(manifest.get("run_id", "")))
    if (run.path / "profile.json").is_file():
        return resolve_target(run.profile())
    name = settings["target"]["name"]
    known = (load_profile(profile).profile for profile in builtin_names())
    for profile in known:
        if profile.target.model == name and profile.target.source.kind == "gguf_wheel":
            return resolve_target(profile)
    raise UsageError(
        f"the run that made this draft is not in {run_root()}, so the place of its target is not known",
        where=str(folder),
        hint=f"retrain-dspark serve {folder} --target FOLDER   (the weights of {name})",
    )


def _champion() -> Path:
    """Folder of the champion; of several drafts' champions, the one whose pointer moved last."""
    from tasks.publish.versions import CHAMPION, read_pointer

    pointers = sorted(run_root().glob(f"published/*/{CHAMPION}"), key=lambda path: path.stat().st_mtime)
    if not pointers:
        raise UsageError(
            "nothing was published yet",
            where=str(run_root() / "published"),
            hint="retrain-dspark run -p laptop",
        )
    place = pointers[-1].parent
    return place / str(read_pointer(place, CHAMPION))
