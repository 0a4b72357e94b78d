"""A profile holds no secret: it is stored with each run, in MLflow and in Prefect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from profiles.schema import Profile
from tasks.errors import ProfileError
from tasks.redaction import known_secrets
from tasks.secret_forms import holds, views

_SHORTEST = 8
"""A shorter value of a variable that is called a token may well be a word of the profile."""


def refuse_secrets(profile: Profile) -> None:
    """Refuse a profile that repeats a secret of this process's environment, plain or encoded.

    Raises:
        ProfileError: Names the field; the secret is not repeated.
    """
    secrets = [secret for secret in known_secrets() if len(secret) >= _SHORTEST]
    for field, text in _texts(profile.model_dump(mode="json")):
        seen = views(text)
        if any(holds(seen, secret) for secret in secrets):
            raise ProfileError(
                "a secret of the environment stands in the profile, which is stored with every run",
                where=field,
                hint="remove it; leave the secret in its variable, which is read where it is needed",
            )


def _texts(value: Any, field: str = "") -> Iterator[tuple[str, str]]:
    """Every text of nested values with its dotted field; names of mappings, too."""
    if isinstance(value, str):
        yield field, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield f"{field}: a name", str(name)
            yield from _texts(inner, f"{field}.{name}" if field else str(name))
    elif isinstance(value, Sequence):
        for number, inner in enumerate(value):
            yield from _texts(inner, f"{field}.{number}")
