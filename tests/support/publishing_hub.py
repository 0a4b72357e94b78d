"""The hub of `fakes/publishing_hub` for a `with` block, and a publisher's side of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from small_hub import serving

from profiles.publishing import Hub
from tasks.publish.hub.models import HubRelease
from tasks.publish.hub.patience import Patience
from tasks.publish.hub.reading import Load
from tasks.publish.hub.release import release
from tasks.publish.verify import verify_folder

PROGRAM = Path(__file__).resolve().parents[1] / "fakes" / "publishing_hub"
WRITER, READER, STRANGER = "hf_writing_canary_token", "hf_reading_canary_token", "hf_strange_canary_token"
TOKENS = {
    WRITER: {"name": "lab", "role": "write", "orgs": {"team": "write", "club": "read"}},
    READER: {"name": "lab", "role": "read"},
    STRANGER: {"name": "stranger", "role": "write"},
}
REPO = "lab/draft"


@dataclass(frozen=True)
class RunningHub:
    """A hub that answers at `url` and keeps its state in `folder`."""

    url: str
    folder: Path

    def fail(self, *rules: dict[str, Any]) -> None:
        """Let requests go wrong from now on, and forget those so far."""
        httpx.post(f"{self.url}/_control/faults", json=rules, trust_env=False).raise_for_status()

    def requests(self, containing: str = "") -> list[dict[str, Any]]:
        """What was asked for since the last `fail`, by method and path."""
        rows = httpx.get(f"{self.url}/_control/requests", trust_env=False).json()
        return [row for row in rows if containing in f"{row['method']} {row['path']}"]

    def state(self, repo: str = REPO) -> dict[str, Any]:
        return json.loads((self.folder / "repositories" / repo / "state.json").read_text())

    def head(self, ref: str = "refs/heads/main", repo: str = REPO) -> str:
        return str(self.state(repo)["refs"][ref][-1])

    def commit(self, identity: str, repo: str = REPO) -> dict[str, Any]:
        return json.loads((self.folder / "repositories" / repo / "commits" / identity).read_text())

    def files(self, ref: str = "refs/heads/main", repo: str = REPO) -> dict[str, bytes]:
        """Path -> content of what a reader of a branch or tag gets."""
        return self.files_at(self.head(ref, repo), repo)

    def files_at(self, commit: str, repo: str = REPO) -> dict[str, bytes]:
        """Path -> content of a commit."""
        tree = self.commit(commit, repo)["tree"]
        return {path: (self.folder / "blobs" / one["sha256"]).read_bytes() for path, one in tree.items()}

    def blob_of(self, file: Path) -> Path:
        """Where the hub keeps a content, once it has it."""
        return self.folder / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()

    def version(self, ref: str = "refs/heads/main") -> str | None:
        """Version that a branch or tag holds; see `version_at`."""
        return self.version_at(self.head(ref))

    def version_at(self, commit: str) -> str | None:
        """Version that a commit holds, every file of it compared with its manifest.

        Raises:
            AssertionError: A mixture.
        """
        files = self.files_at(commit)
        if "manifest.json" not in files:
            assert set(files) <= {".gitattributes"}, f"files without a manifest: {sorted(files)}"
            return None
        manifest = json.loads(files["manifest.json"])
        digests = {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}
        extra = set(files) - set(manifest["files"]) - {"manifest.json", ".gitattributes", "NOTES.md"}
        assert not extra, f"files of another version: {extra}"
        assert {path: digests.get(path) for path in manifest["files"]} == manifest["files"]
        return str(manifest["version"])


@contextmanager
def running_hub(folder: Path) -> Iterator[RunningHub]:
    """Serve a folder as a hub until the block ends."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokens.json").write_text(json.dumps(TOKENS))
    with serving(PROGRAM, folder) as url:
        yield RunningHub(url, folder)


def use_hub(monkeypatch: pytest.MonkeyPatch, hub: RunningHub) -> None:
    """Let this process publish there; large files go by the plain protocol, which the hub speaks."""
    from huggingface_hub import constants

    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


def settings(**changes: Any) -> Hub:
    return Hub(**{"repo": REPO, "timeout_s": 600.0, **changes})


def hasty(hub: Hub) -> Patience:
    """Hardly any waiting between tries."""
    return Patience(hub.attempts, hub.timeout_s, first_wait_s=0.02)


def published(folder: Path, hub: Hub | None = None, load: Load = verify_folder) -> HubRelease:
    """Publish a version as the stage does, with hardly any waiting."""
    hub = hub or settings()
    work = folder.with_name(f"work-{folder.name}")
    return release(folder, hub, token=WRITER, load=load, work=work, patience=hasty(hub))


def people(hub: RunningHub, files: dict[str, bytes], title: str) -> None:
    """A commit on `main` by somebody with a browser."""
    from huggingface_hub import CommitOperationAdd, HfApi

    operations = [CommitOperationAdd(path, content) for path, content in files.items()]
    HfApi(hub.url, token=WRITER).create_commit(REPO, operations, commit_message=title)
