"""Libraries, programs and Python distributions of this environment."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tasks.validate.requirements import ENGINES, LIBRARIES, PACKAGES, STORES

PROGRAMS = ("mooncake_master",)
DISTRIBUTIONS = (
    *ENGINES,
    *STORES,
    *PACKAGES,
    "retrain-dspark",
    "prefect",
    "mlflow",
    "huggingface-hub",
    "numpy",
)


def software() -> dict[str, Any]:
    """Libraries, programs and versions, as fields of `NodeFacts`."""
    return {
        "libraries": {name: library_error(name) for name in LIBRARIES},
        "programs": {name: find_program(name) for name in PROGRAMS},
        "versions": installed_versions(DISTRIBUTIONS),
    }


def library_error(name: str) -> str:
    """Empty if the shared library loads, else the loader's message."""
    try:
        ctypes.CDLL(name)
    except OSError as error:
        return str(error)
    return ""


def find_program(name: str) -> str | None:
    """A program beside this Python (not its link's target), or on the path."""
    beside = Path(sys.executable).parent / name
    return str(beside) if os.access(beside, os.X_OK) else shutil.which(name)


def installed_versions(names: Iterable[str]) -> dict[str, str | None]:
    """Distribution -> installed version, or None."""
    versions: dict[str, str | None] = {}
    for name in names:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return versions
