"""What `promote` and `rollback` share: which draft is meant, and what servers must do afterwards."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import click

from profiles.publishing import Hub
from tasks.errors import EXIT_DONE, EXIT_FAILED, PublishError, UsageError
from tasks.publish.moving import Moved
from tasks.publish.records import VersionRecord, read_record
from tasks.publish.served import servers_of
from tasks.publish.versions import CHAMPION, read_pointer, versions
from tasks.run_folder import RunFolder, run_root


def place_of(name: str | None) -> Path:
    """Folder of a draft's versions.

    Args:
        name: The draft's name under the run root, or its folder; None if there is only one.

    Raises:
        UsageError: There is no such draft, or several; the message lists them.
    """
    root = run_root() / "published"
    known = sorted(path.name for path in root.glob("*") if path.is_dir() and versions(path))
    if name is None and len(known) == 1:
        return root / known[0]
    given = Path(name).expanduser().absolute() if name and "/" in name else root / (name or "")
    if name and versions(given):
        return given
    raise UsageError(
        f"no draft called '{name}' was published" if name else f"{len(known)} drafts were published",
        where=str(root),
        hint=f"name one of: {', '.join(known)}; or the folder that holds its versions"
        if known
        else "nothing was published under this run root; name the folder that holds the versions",
    )


def hub_of(place: Path) -> Callable[[str, str], str] | None:
    """What takes the hub back with the champion; None where the champion is on no hub."""
    champion = read_pointer(place, CHAMPION)
    record = read_record(place, champion) if champion else None
    if record is None or record.hub is None:
        return None
    settings = _hub_settings(record)

    def follow(left: str, to: str) -> str:
        from tasks.publish.hub.rollback import roll_back
        from tasks.publish.task import hub_token

        try:
            token = hub_token(settings)
        except UsageError as error:
            raise PublishError(error.what, where=error.where, hint=error.hint) from None
        release = roll_back(settings, token=token, leaving=left, to=to)
        return "; ".join((f"main of {release.repo} holds {to}", *release.notes))

    return follow


def _hub_settings(record: VersionRecord) -> Hub:
    """How the version got to its hub, from its run's profile; the defaults where that run is gone."""
    run = RunFolder(run_root() / record.run_id)
    settings = run.profile().publish.hub if (run.path / "profile.json").is_file() else None
    repo = (record.hub or {}).get("repo", "")
    return settings if settings is not None and settings.repo == repo else Hub(repo=repo)


def say_moved(place: Path, moved: Moved, done: str) -> int:
    """Let the registry follow, then say what happened and what servers must load; returns the exit code."""
    from flows.settling import settle

    lines = [f"{moved.name}: {done} to {moved.to}" + (f" from {moved.left}" if moved.left else "")]
    if moved.left == moved.to:
        lines = [f"{moved.name}: {moved.to} is the champion already"]
    lines += [f"note: {remark}" for remark in moved.remarks]
    lines += [f"note: {line}" for line in settle(place, run_root())]
    lines += _reload(place, moved)
    click.echo("\n".join(lines))
    if moved.fault:
        again = f"retrain-dspark rollback {shlex.quote(moved.name)} --to {moved.to}"
        click.echo(f"error: the hub still serves {moved.left}: {moved.fault}\n  to do: {again}", err=True)
        return EXIT_FAILED
    return EXIT_DONE


def _reload(place: Path, moved: Moved) -> list[str]:
    record = read_record(place, moved.to)
    lines = [f"servers must load: {moved.location}"]
    if record is not None and record.hub is not None:
        lines.append(f"  from the hub:    {record.hub.get('repo')} at {moved.to}")
    lines.append(f"  command:         retrain-dspark serve {shlex.quote(str(moved.location))}")
    old = servers_of(place / moved.left, run_root()) if moved.left and moved.left != moved.to else []
    lines += [f"still running with {moved.left}: {server}" for server in old]
    if not old and moved.left and moved.left != moved.to:
        lines.append(f"no server with {moved.left} is known; those on other machines are not seen from here")
    return lines
