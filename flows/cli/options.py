"""Options that several commands share."""

from __future__ import annotations

from typing import Any

import click

from profiles.load import LoadedProfile, builtin_names, load_profile, parse_assignments

profile_option = click.option(
    "-p",
    "--profile",
    "profile",
    default="laptop",
    show_default=True,
    metavar="NAME|FILE",
    help=f"Built-in profile ({', '.join(builtin_names())}), or a YAML or JSON file.",
)
set_option = click.option(
    "-s",
    "--set",
    "assignments",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Override one field, e.g. --set train.epochs=2; may be repeated.",
)


def load(profile: str, assignments: tuple[str, ...]) -> tuple[LoadedProfile, dict[str, Any]]:
    """The checked profile, and the overrides as nested values."""
    overrides = parse_assignments(assignments)
    return load_profile(profile, overrides, overrides_origin="--set"), overrides
