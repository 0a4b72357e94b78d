"""Pages in Debian's chromium without a window: the rendered document and a picture of it."""

from __future__ import annotations

import html
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

INSTALL = "sudo apt-get install chromium"
OPTIONS = (
    "--headless",
    "--no-sandbox",  # a container has no user namespaces; only our own pages are opened
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--force-prefers-reduced-motion",  # a picture of a page, not of its fading in
)
MEASURE = "const d = this.contentDocument.documentElement; this.dataset.width = d.scrollWidth"


def program() -> str:
    """Path of chromium; the test is skipped where there is none."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip(f"needs a browser: {INSTALL}")
    return found


def rendered(
    url: str, width: int, height: int, picture: Path, settle_ms: int = 0, timeout_s: float = 240
) -> str:
    """The document of a page after its scripts ran, as HTML; a picture of it is written to `picture`.

    Args:
        width: Of the window, pixels; chromium makes none narrower than 500, see `framed`.
        settle_ms: Time that scripts get, of the page's own clock; it stands while an answer is awaited.
    """
    words = (f"--window-size={width},{height}", f"--screenshot={picture}", "--dump-dom")
    budget = (f"--virtual-time-budget={settle_ms}",) if settle_ms else ()
    with tempfile.TemporaryDirectory() as profile:
        done = subprocess.run(
            (program(), *OPTIONS, f"--user-data-dir={profile}", *words, *budget, url),
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
    assert done.returncode == 0 and picture.is_file(), done.stderr[-2000:]
    return done.stdout


def framed(page: str, width: int, height: int) -> str:
    """A document that shows `page` as a phone does, `width` pixels wide.

    The frame's `data-width` becomes what the page needs: more than `width` if one has to scroll sideways.
    """
    return (
        "<!doctype html><body style='margin:0'>"
        f"<iframe style='border:0' width={width} height={height} onload='{MEASURE}'"
        f' srcdoc="{html.escape(page)}"></iframe></body>'
    )
