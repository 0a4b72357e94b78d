"""What may stand in a published file: no path of this machine, no secret, no prompt."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from profiles.schema import Profile
from tasks.errors import PublishError
from tasks.redaction import looks_secret, secrets_of

_PATH = re.compile(
    r"(?:^|[\s\"'=(:,])(?:~?/[^\s/]+/|file://|[A-Za-z]:\\|/(?:home|root|tmp|mnt|work|data|var)\b)"
)
_PRIVATE_KEYS = re.compile(r"(path|dir|folder|file|env|key|secret|url|uri|host|argv|command)s?$", re.I)
_TEXT_BYTES = 4 * 2**20


def target_name(profile: Profile) -> str:
    """Name of the target for others: a hub name as it is, a local folder by its last part."""
    model = profile.target.model.rstrip("/")
    is_folder = model.startswith(("/", ".", "~")) or model.count("/") > 1 or Path(model).expanduser().is_dir()
    return Path(model).name if is_folder else model


def public_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers, words and switches of a nested configuration; whatever could name this machine is left out."""
    kept: dict[str, Any] = {}
    for name, value in values.items():
        if _PRIVATE_KEYS.search(str(name)) or looks_secret(str(name)):
            continue
        if isinstance(value, Mapping):
            if inner := public_values(value):
                kept[str(name)] = inner
        elif _is_public(value):
            kept[str(name)] = value
    return kept


def _is_public(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= 120 and not _PATH.search(value) and "\n" not in value
    if isinstance(value, list | tuple):
        return all(_is_public(item) for item in value)
    return value is None or isinstance(value, bool | int | float)


def machine_paths(folders: Iterable[Path]) -> list[str]:
    """Texts that would tell where this machine keeps things."""
    known = [*folders, Path.home(), Path(sys.prefix), Path.cwd()]
    texts = {str(path) for path in known} | {str(path.resolve()) for path in known}
    return sorted(text for text in texts if len(text) > 4)


def refuse_leaks(folder: Path, folders: Iterable[Path], environment: Mapping[str, str] | None = None) -> None:
    """Look through every text file that is about to be published.

    Args:
        folders: Folders of this machine that the files were made from.

    Raises:
        PublishError: A path or a secret stands in a file. The secret itself is not repeated.
    """
    paths = machine_paths(folders)
    hidden = secrets_of(os.environ if environment is None else environment)
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        if file.suffix == ".safetensors" or file.stat().st_size > _TEXT_BYTES:
            continue
        text = file.read_text(encoding="utf-8", errors="replace")
        if any(secret in text for secret in hidden):
            raise PublishError(
                "a secret of the environment stands in a file",
                where=file.name,
                hint="remove it from the profile; name the variable instead",
            )
        if found := next((path for path in paths if path in text), None):
            raise PublishError(
                f"a path of this machine ({found}) stands in a file",
                where=file.name,
                hint="publish names, not paths",
            )
