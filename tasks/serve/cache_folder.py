"""Where things are kept that are made once and shared by runs. Only the standard library."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """Folder of everything that is made once and shared by runs."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "retrain-dspark"
