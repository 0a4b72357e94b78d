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
MASK = "***"


def looks_secret(name: str, value: str = "") -> bool:
    """Whether a variable probably holds a secret, by its name or by a password inside a URL."""
    upper = name.upper().replace("TOKENIZER", "")
    return any(word in upper for word in _SECRET_WORDS) or bool(_URL_PASSWORD.search(value))


def secrets_of(environment: Mapping[str, str]) -> list[str]:
    """Values that must not appear anywhere, by the names of their variables; the longest first."""
    found = (value for name, value in environment.items() if looks_secret(name, value))
    return sorted((value for value in found if len(value) >= _SHORTEST), key=len, reverse=True)


def redact(text: str) -> str:
    """The text without passwords of URLs and without values of this process's secret variables, also where
    these are encoded or broken over lines."""
    return mask_forms(_URL_PASSWORD.sub(rf"\g<1>{MASK}@", text), known_secrets(), MASK)


def known_secrets() -> list[str]:
    """Everything that this process knows to be secret; the longest first."""
    return secrets_of(os.environ)


def mask_error(error: BaseException | None) -> None:
    """Mask secrets in an exception's text, and in those that it came from, before anything stores it.

    An error of our own masks itself; a library's holds what it was given, and Prefect keeps its text.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.args = tuple(redact(one) if isinstance(one, str) else one for one in error.args)
        error = error.__cause__ or error.__context__
