"""What the publish stage needs of a hub, behind three questions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from profiles.publishing import Hub
from tasks.publish.hub.models import HubRelease

if TYPE_CHECKING:
    from tasks.publish.hub.patience import Patience
    from tasks.publish.hub.reading import Load
    from tasks.publish.hub.repository import Repository

_VERSION = re.compile(r"^v(\d{4,})$")


@dataclass(frozen=True)
class HubPublisher:
    """Publishes versions in one repository.

    Args:
        token: Written nowhere, not even by `repr`.
        load: Loads a folder that came back from the hub; raises if it does not load.
        patience: Limits of each call; None takes the profile's.
    """

    hub: Hub
    token: str = field(repr=False)
    load: Load
    patience: Patience | None = None

    def newest(self) -> int:
        """Highest number that the hub's tags have; 0 without any."""
        with self._opened() as repository:
            tags = repository.refs().tags if repository.exists() else {}
        return max((int(match[1]) for tag in tags if (match := _VERSION.match(tag))), default=0)

    def gave_away(self, folder: Path) -> bool:
        """Whether the hub has another draft under this version's number, and nothing of this one.

        While the version's own side branch is there, its publication can still say what happened.
        """
        from tasks.publish.hub.branch import own_commit, side_branch
        from tasks.publish.hub.contents import version_in

        version = version_in(folder)
        with self._opened() as repository:
            refs = repository.refs() if repository.exists() else None
            tagged = refs.tags.get(version.name) if refs else None
            if refs is None or tagged is None or side_branch(version) in refs.branches:
                return False
            return own_commit(repository.history(tagged), version) is None

    def release(self, folder: Path, work: Path) -> HubRelease:
        """Publish a version's folder; see `tasks.publish.hub.release.release`."""
        from tasks.publish.hub.release import release

        return release(folder, self.hub, token=self.token, load=self.load, work=work, patience=self.patience)

    @contextmanager
    def _opened(self) -> Iterator[Repository]:
        from tasks.publish.hub.patience import Patience
        from tasks.publish.hub.repository import opened

        patience = self.patience or Patience(self.hub.attempts, self.hub.timeout_s)
        with opened(self.hub, self.token, patience) as repository:
            yield repository
