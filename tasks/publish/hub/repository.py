"""A repository of a hub, in the few words that publication needs; every failure with its remedy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationCopy,
    CommitOperationDelete,
    HfApi,
    get_session,
    hf_hub_url,
)
from huggingface_hub.errors import HfHubHTTPError, RevisionNotFoundError
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils._http import hf_raise_for_status

from profiles.publishing import Hub
from tasks.errors import PublishError
from tasks.publish.hub.client import Unsure, patient_requests
from tasks.publish.hub.contents import Blob, Version, is_content, version_of
from tasks.publish.hub.mark import Mark, read_mark
from tasks.publish.hub.patience import Patience
from tasks.publish.hub.refusals import HubRefused, first_line, refusal

MAIN = "main"
DEFAULT_ENDPOINT = "https://huggingface.co"
Operation = CommitOperationAdd | CommitOperationCopy | CommitOperationDelete
Value = TypeVar("Value")


class Moved(Exception):
    """Somebody committed to the branch since its head was read."""


@dataclass(frozen=True)
class Refs:
    """Name -> commit."""

    branches: dict[str, str]
    tags: dict[str, str]


@dataclass(frozen=True)
class Commit:
    """A commit of a branch's history."""

    id: str
    title: str
    authors: tuple[str, ...]
    mark: Mark | None


class Repository:
    """One model repository. Made by `opened`."""

    def __init__(self, hub: Hub, token: str, patience: Patience) -> None:
        self.hub, self.name, self.patience = hub, hub.repo, patience
        self._token = token
        self.api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT, token=token)

    def ask(self, call: Callable[[], Value]) -> Value:
        """Make a request that may be repeated; what the hub has not got yet (another of its machines may be
        behind) is asked for again.

        Raises:
            PublishError: The hub refuses, or stays away.
        """
        tried = 0
        while True:
            tried += 1
            try:
                return call()
            except RevisionNotFoundError:
                self.patience.wait(tried, "the hub does not know the revision (yet)", self.name)
            except HfHubHTTPError as error:
                raise refusal(error, self.hub) from None

    def ensure(self) -> None:
        """Make the repository if it is missing; one that exists keeps what it is."""
        if not self.exists():
            self.ask(lambda: self.api.create_repo(self.name, private=self.hub.private, exist_ok=True))

    def exists(self) -> bool:
        try:
            self.ask(lambda: self.api.auth_check(self.name))
        except HubRefused as refused:
            if refused.missing:
                return False
            raise
        return True

    def refs(self) -> Refs:
        found = self.ask(lambda: self.api.list_repo_refs(self.name))
        return Refs(
            {one.name: one.target_commit for one in found.branches},
            {one.name: one.target_commit for one in found.tags},
        )

    def head(self, branch: str = MAIN) -> str:
        """Commit that a branch is at.

        Raises:
            PublishError: There is no such branch.
        """
        tried = 0
        while (commit := self.refs().branches.get(branch)) is None:
            tried += 1
            self.patience.wait(tried, f"the hub does not show a branch {branch} (yet)", self.name)
        return commit

    def tree(self, commit: str) -> dict[str, Blob]:
        """Every file of a commit."""
        rows = self.ask(lambda: list(self.api.list_repo_tree(self.name, recursive=True, revision=commit)))
        return {
            row.path: Blob(row.blob_id, row.size, row.lfs.sha256 if row.lfs else None)
            for row in rows
            if isinstance(row, RepoFile)
        }

    def history(self, revision: str) -> list[Commit]:
        """Commits, newest first."""
        found = self.ask(lambda: self.api.list_repo_commits(self.name, revision=revision))
        return [Commit(one.commit_id, one.title, tuple(one.authors), read_mark(one.message)) for one in found]

    def content(self, commit: str, path: str, blob: Blob) -> bytes:
        """A small file of a commit; its hash is checked.

        Raises:
            PublishError: It does not come whole.
        """
        url = hf_hub_url(self.name, path, revision=commit, endpoint=self.api.endpoint)
        tried = 0
        while True:
            tried += 1
            content = self.ask(lambda: self._get(url))
            if is_content(blob, content):
                return content
            self.patience.wait(tried, f"{path} came with another content than its hash", self.name)

    def _get(self, url: str) -> bytes:
        response = get_session().get(url, headers={"Authorization": f"Bearer {self._token}"})
        hf_raise_for_status(response)
        return response.content

    def version_at(self, commit: str, tree: dict[str, Blob]) -> Version | None:
        """The version that a commit holds by its manifest; None if it holds none of ours."""
        blob = tree.get("manifest.json")
        return version_of(self.content(commit, "manifest.json", blob)) if blob else None

    def make_branch(self, branch: str, commit: str) -> None:
        self.ask(lambda: self.api.create_branch(self.name, branch=branch, revision=commit, exist_ok=True))

    def drop_branch(self, branch: str) -> None:
        """Remove a branch if it is there; what has a tag stays."""

        def drop() -> None:
            try:
                self.api.delete_branch(self.name, branch=branch)
            except RevisionNotFoundError:
                return  # an earlier try got through

        if branch in self.refs().branches:
            self.ask(drop)

    def make_tag(self, tag: str, commit: str) -> str:
        """Put a tag on a commit, unless it exists; returns the commit that it is on."""
        self.ask(lambda: self.api.create_tag(self.name, tag=tag, revision=commit, exist_ok=True))
        tried = 0
        while (found := self.refs().tags.get(tag)) is None:
            tried += 1
            self.patience.wait(tried, f"the hub does not show the tag {tag} (yet)", self.name)
        return found

    def commit(
        self, branch: str, operations: Sequence[Operation], parent: str, title: str, mark: Mark
    ) -> str:
        """Commit to a branch whose head must be `parent`; returns the commit's id.

        Raises:
            Moved: The head is another one.
            Unsure: It broke off; the commit may have been made.
        """
        return str(self._commit(operations, branch, parent, title, mark, False).oid)

    def open_pull_request(self, operations: Sequence[Operation], parent: str, title: str, mark: Mark) -> int:
        """Open a pull request for `main` with one commit; returns its number. Raises as `commit`."""
        done = self._commit(operations, MAIN, parent, title, mark, True)
        return int(done.pr_num)

    def _commit(
        self,
        operations: Sequence[Operation],
        branch: str,
        parent: str,
        title: str,
        mark: Mark,
        pull_request: bool,
    ) -> Any:
        try:
            return self.api.create_commit(
                self.name,
                operations,
                commit_message=title,
                commit_description=mark.lines(),
                revision=branch,
                parent_commit=parent,
                create_pr=pull_request,
            )
        except HfHubHTTPError as error:
            if error.response.status_code in (409, 412):
                raise Moved(first_line(error)) from None
            if isinstance(error, RevisionNotFoundError):
                raise Unsure("the hub does not know the branch (yet)") from None
            raise refusal(error, self.hub) from None
        except ValueError as error:
            raise PublishError(
                f"the hub refuses the card: {first_line(error)}",
                where=f"{self.name}: README.md",
                hint="correct publish.card and publish.license, and run the publish stage again",
            ) from None


@contextmanager
def opened(hub: Hub, token: str, patience: Patience) -> Iterator[Repository]:
    """The repository for a `with` block; requests of this process keep to `patience` meanwhile."""
    with patient_requests(patience):
        yield Repository(hub, token, patience)
