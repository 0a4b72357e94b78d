"""Which servers still run a version: processes of this host, and what runs registered elsewhere."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from tasks.processes.identity import host_name

_PROCESSES = Path("/proc")


def servers_of(folder: Path, root: Path) -> list[str]:
    """One line for each server whose command line names the folder of a version.

    Args:
        root: The run root, whose runs register what they start, also on other hosts.
    """
    return [*_here(folder), *_elsewhere(folder, root)]


def _here(folder: Path) -> Iterator[str]:
    for path in sorted(_PROCESSES.glob("[0-9]*"), key=lambda path: int(path.name)):
        if int(path.name) == os.getpid():
            continue
        try:
            words = (path / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if _serves(words, folder):
            port = _port(words)
            yield f"process {path.name} on this host" + (f", port {port}" if port else "")


def _serves(words: list[str], folder: Path) -> bool:
    """A server of it: the name alone is in command lines of editors and searches, too."""
    names = any(
        word == str(folder) or word.startswith(f"{folder}/") or f'"{folder}"' in word for word in words
    )
    return names and any("serve" in word or "api_server" in word for word in words)


def _port(words: list[str]) -> str:
    return next((words[n + 1] for n, word in enumerate(words[:-1]) if word == "--port"), "")


def _elsewhere(folder: Path, root: Path) -> Iterator[str]:
    for path in sorted(root.glob("*/services/*.json")):
        try:
            entry = json.loads(path.read_text(encoding="utf-8"))
            words, host = [str(word) for word in entry["argv"]], str(entry["host"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if host != host_name() and _serves(words, folder):
            yield f"{path.stem} of run {path.parent.parent.name} on {host}"
