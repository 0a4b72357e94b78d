"""Arms that run already: where they answer, and what they are. They are asked, and never changed or ended."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tasks.errors import UsageError

PLAIN = "plain"
_PLAIN_WORDS = ("none", PLAIN)
_NAME = re.compile(r"^[a-z0-9][a-z0-9._-]{0,31}$")
_VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
FIELD = "--arm"


@dataclass(frozen=True)
class ArmAddress:
    """A server that the user names as an arm. Holds no key, only where it is."""

    name: str
    url: str
    """Base URL without `/v1`."""
    key_env: str | None = None
    """Environment variable that holds its key."""

    def key(self) -> str | None:
        """The server's key.

        Raises:
            UsageError: The variable is not set.
        """
        if self.key_env is None:
            return None
        key = os.environ.get(self.key_env)
        if not key:
            raise UsageError(
                f"the environment variable {self.key_env} is not set",
                where=f"--arm-key-env {self.name}={self.key_env}",
                hint=f"export {self.key_env}=... before the run",
            )
        return key


@dataclass(frozen=True)
class AttachedArm:
    """A server that was asked what it is. Never persisted: it holds the key."""

    name: str
    url: str
    served_name: str
    api_key: str | None = field(repr=False)
    engine: str
    """E.g. `vllm 0.33.0`."""
    draft_tokens: int = 0
    """K as its counters show it; 0 for a server that does not speculate."""
    target: str = ""
    """Model folder or repository that it serves; empty where it does not tell."""
    method: str | None = None
    """How it speculates: `none`, or vLLM's word; None where it does not tell."""
    dtype: str | None = None
    max_num_seqs: int | None = None
    prefix_caching: bool | None = None
    notes: tuple[str, ...] = ()
    """What it says of its settings, and what it does not say."""


def arms_of(arms: Mapping[str, str], keys: Mapping[str, str]) -> tuple[ArmAddress, ...]:
    """The arms that a user names; `none` is the arm `plain`.

    Args:
        arms: Name -> base URL.
        keys: Name -> environment variable of its key; a name `*` is for all others.

    Raises:
        UsageError: A bad name, URL or variable; no arm without a draft, or nothing to compare it with.
    """
    known = {_named(name): url for name, url in arms.items()}
    if len(known) != len(arms):
        raise UsageError("two arms have one name", where=FIELD, hint="none and plain are the same arm")
    variables = {_named(name) if name != "*" else name: variable for name, variable in keys.items()}
    stray = sorted(set(variables) - set(known) - {"*"})
    if stray:
        raise UsageError(
            f"there is no arm '{stray[0]}'", where="--arm-key-env", hint=f"arms: {', '.join(known)}"
        )
    if PLAIN not in known or len(known) < 2:
        raise UsageError(
            f"an arm without a draft and another one are needed; given: {', '.join(known) or 'none'}",
            where=FIELD,
            hint="--arm none=URL --arm draft=URL",
        )
    order = sorted(known, key=lambda name: name != PLAIN)
    return tuple(
        ArmAddress(name, _url(name, known[name]), _variable(variables.get(name, variables.get("*"))))
        for name in order
    )


def pairs(given: Sequence[str], option: str, what: str) -> dict[str, str]:
    """`("draft=URL", ...)` -> `{"draft": "URL"}`.

    Raises:
        UsageError: No `=`, or a name twice.
    """
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise UsageError(f"'{text}' is not NAME={what}", where=option, hint=f"{option} draft={what}")
        if name in found:
            raise UsageError(f"'{name}' is given twice", where=option, hint="give each name once")
        found[name] = value
    return found


def _named(name: str) -> str:
    if name in _PLAIN_WORDS:
        return PLAIN
    if not _NAME.match(name):
        raise UsageError(
            f"'{name}' cannot be an arm's name", where=FIELD, hint="use lower-case letters, digits and . _ -"
        )
    return name


def _url(name: str, url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise UsageError(
            f"arm {name}: this is not the base URL of a server", where=FIELD, hint="e.g. http://10.0.0.5:8000"
        )
    if parts.username or parts.password:
        raise UsageError(
            f"arm {name}: a URL with a password would be stored with the run",
            where=FIELD,
            hint=f"put the key into a variable and name it: --arm-key-env {name}=VARIABLE",
        )
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def _variable(name: str | None) -> str | None:
    if name is not None and not _VARIABLE.match(name):
        raise UsageError(
            "a key is named by an environment variable, never given itself",
            where="--arm-key-env",
            hint="--arm-key-env draft=DRAFT_KEY, and export DRAFT_KEY=...",
        )
    return name
