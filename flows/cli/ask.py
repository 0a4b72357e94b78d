"""`retrain-dspark ask`: an answer with the accepted draft tokens of each round coloured."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from tasks.errors import UsageError

if TYPE_CHECKING:
    from tasks.publish.serving_ask import Answer, Asked
    from tasks.serve.vllm_http import Server


@click.command("ask")
@click.argument("question")
@click.argument("source", metavar="[RUN|PROFILE|FOLDER|OWNER/NAME]", required=False)
@click.option("--url", help="Ask a server that runs already; nothing is started.")
@click.option("--model", metavar="NAME", help="Model of that server. [default: its first]")
@click.option(
    "--api-key-env",
    metavar="VARIABLE",
    default="VLLM_API_KEY",
    show_default=True,
    help="Environment variable that holds that server's key.",
)
@click.option("--target", metavar="FOLDER", help="Weights of the target. [default: those of the draft's run]")
@click.option("--max-tokens", type=click.IntRange(1), default=128, show_default=True)
@click.option("--temperature", type=click.FloatRange(0, 2), default=0.0, show_default=True)
def command(
    question: str,
    source: str | None,
    url: str | None,
    model: str | None,
    api_key_env: str,
    target: str | None,
    max_tokens: int,
    temperature: float,
) -> None:
    """Ask one question and show which tokens of the answer were drafted and accepted, round by round.

    Serves the draft that SOURCE names (as `serve` takes it) and ends the server afterwards, or asks a server
    that runs at --url. Where the server's stream and counters disagree, nothing is marked, and it says why.
    """
    from tasks.publish.serving_ask import Asked

    asked = Asked(question, max_tokens, temperature)
    if url and (source or target):
        raise UsageError(
            "a server that runs already has its draft and its target",
            where="--url",
            hint="give either --url, or the draft to serve",
        )
    if url:
        _show(_running(url, model, os.environ.get(api_key_env) or None), asked)
        return
    _served(source, target or os.environ.get("TARGET"), asked)


def _served(source: str | None, target: str | None, asked: Asked) -> None:
    from tasks.publish.serving_source import find_served
    from tasks.publish.serving_start import served_here

    served = find_served(source, weights=True)
    for note in served.notes:
        click.echo(note, err=True)
    click.echo("starting the server", err=True)
    with served_here(served, target, _Starting()) as server:
        _show(server, asked)


class _Starting:
    """Tells on standard error how far the start is."""

    def update(
        self, *, done: float, total: float | None, unit: str, metrics: object = None, note: str = ""
    ) -> None:
        click.echo(note or f"{done:.0f} {unit}", err=True)


def _running(url: str, model: str | None, key: str | None) -> Server:
    from tasks.publish.serving_ask import served_name
    from tasks.serve.vllm_http import Server

    base = url.rstrip("/").removesuffix("/v1")
    return Server(base, served_name(Server(base, "", key), model), key)


def _show(server: Server, asked: Asked) -> None:
    from tasks.publish.serving_ask import ask
    from tasks.publish.serving_marks import coloured, shown

    answer: Answer = ask(server, asked)
    colours = coloured(os.environ, sys.stdout.isatty())
    click.echo(shown(answer, colours=colours, encoding=sys.stdout.encoding or "ascii"), color=colours)
