"""The command group, exit codes, and how errors are shown."""

from __future__ import annotations

import importlib
import sys
from typing import NoReturn

import click

from flows.cli.environment import prepare_environment
from profiles.load import ProfileProblem
from tasks.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, ProfileError, RetrainError
from tasks.redaction import redact

COMMANDS = {
    "run": "Retrain, measure and publish a draft.",
    "evaluate": "Measure a draft, or servers that run, without training.",
    "resume": "Go on with a run: finished stages are reused.",
    "plan": "Show processes, sizes and expected minutes; starts nothing.",
    "doctor": "Check this machine for a profile.",
    "logs": "Show the logs of a run.",
    "publish": "Decide about a finished run's draft again, and publish it.",
    "promote": "Agree to a draft, or let a published version be the champion.",
    "rollback": "Let the champion be the version before.",
    "serve": "Serve a published draft, or print files that do.",
    "ask": "Show an answer with the accepted draft tokens coloured.",
    "clean": "Remove old runs and what dead runs left.",
    "ui": "Start Prefect's and MLflow's pages and the work pool.",
}
EXIT_TERMINATED = 143


class Commands(click.Group):
    """Loads a command's module when it is used, so that `--help` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"flows.cli.{cmd_name}").command
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="retrain-dspark")
def cli() -> None:
    """Retrain a DSpark draft model for a served LLM and publish it only when it is better."""


def main() -> NoReturn:
    """Entry point of the console script."""
    prepare_environment()
    sys.exit(run_cli(sys.argv[1:]))


def run_cli(words: list[str]) -> int:
    """Run a command line; returns its exit code. A user's mistake never shows a traceback."""
    try:
        code = cli.main(args=words, prog_name="retrain-dspark", standalone_mode=False)
        return code if isinstance(code, int) else EXIT_DONE
    except click.exceptions.Abort:
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        error.show()
        return EXIT_USAGE
    except ProfileProblem as problem:
        return show_error(ProfileError(problem.what, where=problem.where, hint=problem.hint))
    except RetrainError as error:
        return show_error(error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return EXIT_DONE
    except Exception as error:
        return show_unexpected(error)


def show_error(error: RetrainError) -> int:
    """Print what, where and what to do; returns the exit code."""
    click.echo(f"error: {error}", err=True)
    return error.exit_code


def show_unexpected(error: BaseException) -> int:
    """One line and where the traceback is."""
    from flows.cli.traces import keep_traceback

    path = keep_traceback(error)
    text = redact(str(error)).splitlines()[0] if str(error) else ""
    click.echo(f"error: {type(error).__name__}: {text}\n  traceback: {path}", err=True)
    return EXIT_FAILED
