"""`retrain-dspark serve`: serve a published draft with its target, or print what would."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from flows.cli.options import set_option
from profiles.load import parse_assignments

if TYPE_CHECKING:
    from tasks.publish.serving_recipe import Recipe

HOST = "127.0.0.1"


@click.command("serve")
@click.argument("source", metavar="[RUN|PROFILE|FOLDER|OWNER/NAME[@REVISION]]", required=False)
@click.option(
    "--render",
    type=click.Choice(["compose", "slurm", "k8s"]),
    help="Print a compose file, a Slurm batch script or Kubernetes manifests instead of serving.",
)
@click.option(
    "--target",
    metavar="FOLDER|OWNER/NAME",
    help="Weights of the target. [default: those of the draft's run or profile]",
)
@click.option("--port", type=click.IntRange(1, 65535), default=8000, show_default=True)
@click.option("--print", "only_print", is_flag=True, help="Print the command instead of running it.")
@set_option
def command(
    source: str | None,
    render: str | None,
    target: str | None,
    port: int,
    only_print: bool,
    assignments: tuple[str, ...],
) -> None:
    """Serve a published draft together with its target.

    A version folder, a run, a profile (the draft that it names as its incumbent, else its champion) or a
    repository on a hub; nothing takes the champion that was chosen last.
    """
    from tasks.publish.serving_source import find_served, recipe_of

    overrides = parse_assignments(assignments)
    served = find_served(source, overrides, weights=not render and not only_print)
    recipe = recipe_of(served, target=target or os.environ.get("TARGET"), port=port)
    if render:
        click.echo(_rendered(recipe, render), nl=False)
        return
    for note in recipe.notes:
        click.echo(note, err=True)
    folder = recipe.draft.folder
    if folder is not None and served.script and not assignments:
        _script(folder, recipe, only_print)
    else:
        _engine(recipe, only_print)


def _rendered(recipe: Recipe, render: str) -> str:
    from tasks.publish.serving_compose import compose
    from tasks.publish.serving_kubernetes import kubernetes
    from tasks.publish.serving_slurm import slurm

    return {"compose": compose, "slurm": slurm, "k8s": kubernetes}[render](recipe)


def _script(folder: Path, recipe: Recipe, only_print: bool) -> None:
    """The published folder serves itself: its script looks whether it is whole first."""
    from tasks.publish.serving import serve_command

    target = recipe.target.here()
    if only_print:
        click.echo(serve_command(folder, Path(target), sys.executable, recipe.port))
        return
    os.environ.setdefault("PYTHON", sys.executable)
    _become(("bash", str(folder / "serve.sh"), target, str(recipe.port)))


def _engine(recipe: Recipe, only_print: bool) -> None:
    from tasks.publish.serving_here import here

    argv, environment = here(recipe, HOST)
    if only_print:
        import shlex

        told = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
        click.echo(" ".join([*told, shlex.join(argv)]))
        return
    os.environ.update(environment)
    _become(argv)


def _become(argv: tuple[str, ...]) -> NoReturn:
    os.execvp(argv[0], argv)
