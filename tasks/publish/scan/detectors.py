"""Secrets by their looks: the detectors of `detect-secrets`, and patterns of tokens that it does not know.

Left out on purpose: its detector of random hexadecimal text, since digests and ids stand in every published
folder, and its verification of what it finds, which would ask servers on the network.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

_OWN = {
    "a Hugging Face token": r"\bhf_[A-Za-z0-9]{20,}",
    "a Prefect key": r"\bpn[ub]_[A-Za-z0-9]{16,}",
    "an API key": r"\bsk-(?:[a-z]+-)?[A-Za-z0-9_-]{20,}",
    "a GitLab token": r"\bglpat-[\w-]{16,}",
    "a GitHub token": r"\b(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,})",
    "a PyPI token": r"\bpypi-AgE[\w-]{30,}",
    "a Google key": r"\bAIza[\w-]{30,}",
    "a private key": r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY(?: BLOCK)?-----",
    "a Databricks token": r"\bdapi[0-9a-f]{32}\b",
    "a bearer token": r"(?i)\bbearer\s+[A-Za-z0-9._~+/-]{20,}=*",
    "a password in an address": r"://[^/@\s:\"'<>]*:[^/@\s\"'<>$*]{3,}@",
}
_OWN_PATTERNS = {kind: re.compile(pattern) for kind, pattern in _OWN.items()}
_LINE_DETECTORS = ("KeywordDetector", "Base64HighEntropyString")
"""Those that judge by the surroundings: they read lines as they stand, not what was joined or decoded."""
_SKIPPED = (*_LINE_DETECTORS, "HexHighEntropyString", "BasicAuthDetector")
_LONGEST_LINE = 20_000
_NO_SECRET = r"tokenizer[_ ]digest"
"""What the detector of secret-sounding names takes for a token."""


@cache
def _plugins() -> tuple[list[Any], list[Any]]:
    """Detectors of whole texts, and detectors of lines."""
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class

    kinds = {kind.__name__: kind for kind in get_mapping_from_secret_type_to_class().values()}
    whole = [kind() for name, kind in sorted(kinds.items()) if name not in _SKIPPED]
    return whole, [
        kinds["KeywordDetector"](keyword_exclude=_NO_SECRET),
        kinds["Base64HighEntropyString"](limit=4.5),
    ]


def detected(name: str, text: str, readings: Iterable[str]) -> Iterator[str]:
    """Kinds of secrets that a file seems to hold; the secrets themselves are not repeated.

    Args:
        name: File name, by which some detectors know the syntax.
        text: The file's text.
        readings: The text in every way in which it can be read (`texts.readings`).
    """
    whole, by_line = _plugins()
    for reading in readings:
        yield from (kind for kind, pattern in _OWN_PATTERNS.items() if pattern.search(reading))
        for plugin in whole:
            if next(iter(plugin.analyze_string(reading)), None) is not None:
                yield f"a secret ({plugin.secret_type})"
    for number, line in enumerate(text.splitlines(), 1):
        if not 8 <= len(line) <= _LONGEST_LINE:
            continue
        for plugin in by_line:
            if plugin.analyze_line(filename=name, line=line, line_number=number):
                yield f"a secret ({plugin.secret_type}), line {number}"
