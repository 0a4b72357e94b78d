"""Words of `nvidia-smi` that stand in place of a value."""

from __future__ import annotations

_NOT_OFFERED = ("n/a", "not supported", "requested functionality has been deprecated", "function not found")
_REFUSED = (
    "insufficient permissions",
    "unknown error",
    "err!",
    "gpu is lost",
    "gpu requires reset",
    "no permission",
)


def not_offered(word: str) -> bool:
    """True if the word says that this GPU or driver does not offer the value."""
    bare = _bare(word)
    return bare in _NOT_OFFERED or bare.startswith("deprecated")


def refused(word: str) -> bool:
    """True if the value exists and could not be read."""
    return _bare(word) in _REFUSED


def _bare(word: str) -> str:
    return word.strip().strip("[]").strip().lower()
