"""Secrets of the environment: how they are recognised, and how they are kept out of texts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from tasks.secret_forms import mask_forms

_SECRET_WORDS = (
    "TOKEN",
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "API_KEY",
    "APIKEY",
    "ACCESS_KEY",
    "PRIVATE_KEY",
    "CREDENTIAL",
)
_URL_PASSWORD = re.compile(r"(://[^/@\s:]*:)[^/@\s]+@")
_SHORTEST = 6
_handed_in: set[str] = set()
MASK = "***"


def looks_secret(name: str, value: str = "") -> bool:
    """Whether a variable probably holds a secret: by its name, a password inside a URL, or as registered."""
    upper = name.upper().replace("TOKENIZER", "")
    named = any(word in upper for word in _SECRET_WORDS)
    return named or bool(_URL_PASSWORD.search(value)) or value.strip() in _handed_in


def secrets_of(environment: Mapping[str, str]) -> list[str]:
    """Values that must not appear anywhere, by the names of their variables; the longest first."""
    found = (value for name, value in environment.items() if looks_secret(name, value))
    return sorted((value for value in found if len(value) >= _SHORTEST), key=len, reverse=True)


def register_secret(value: str) -> None:
    """Let `redact` mask a secret that came from elsewhere than a variable, as long as this process lives."""
    if len(value) >= _SHORTEST:
        _handed_in.add(value)


def redact(text: str) -> str:
    """The text without passwords of URLs, values of secret variables and registered secrets, also where these
    are encoded or broken over lines."""
    return mask_forms(_URL_PASSWORD.sub(rf"\g<1>{MASK}@", text), known_secrets(), MASK)


def known_secrets() -> list[str]:
    """Everything that this process knows to be secret; the longest first."""
    return sorted({*secrets_of(os.environ), *_handed_in}, key=len, reverse=True)


def mask_error(error: BaseException | None) -> None:
    """Mask secrets in an exception's text, and in those that it came from, before anything stores it.

    An error of our own masks itself; a library's holds what it was given, and Prefect keeps its text.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.args = tuple(redact(one) if isinstance(one, str) else one for one in error.args)
        error = error.__cause__ or error.__context__
