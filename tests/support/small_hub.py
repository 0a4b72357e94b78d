"""The hub of `fakes/hub.py` for a `with` block, and repositories in it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tasks.processes.ports import free_port

PROGRAM = Path(__file__).resolve().parents[1] / "fakes" / "hub.py"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def repository(hub: Path, kind: str, name: str, files: dict[str, bytes], commit: str = COMMIT) -> Path:
    """Put a repository into the hub's folder; without a commit it asks for an agreement first."""
    folder = hub / kind / name
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    if commit:
        (folder / ".commit").write_text(commit)
    return folder


@contextmanager
def running_hub(folder: Path) -> Iterator[str]:
    """Serve the folder; gives the hub's address."""
    with serving(PROGRAM, folder) as url:
        yield url


@contextmanager
def serving(program: Path, folder: Path) -> Iterator[str]:
    """Let a program that takes `--port` and `--folder` serve a folder; gives its address."""
    port = free_port("127.0.0.1")
    process = subprocess.Popen(
        (sys.executable, str(program), "--port", str(port), "--folder", str(folder)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        with httpx.Client(trust_env=False) as client:
            while process.poll() is None:
                try:
                    client.get(url)
                    break
                except httpx.HTTPError:
                    time.sleep(0.02)
        yield url
    finally:
        process.kill()
        process.wait()
